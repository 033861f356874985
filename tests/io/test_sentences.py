"""Splitting texts into sentences, and locating them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.io.sentences import locate, split_sentences, title_and_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One cat sat. Two dogs ran! Did three birds fly?",
         ["One cat sat.", "Two dogs ran!", "Did three birds fly?"]),
        ("It fell by 3.5 percent. See www.example.org for more.",
         ["It fell by 3.5 percent.", "See www.example.org for more."]),
        ("As in Fig. 3 the flow (cf. Table 2) turns. It then stops dead.",
         ["As in Fig. 3 the flow (cf. Table 2) turns.", "It then stops dead."]),
        ("all in lower case here . so is the next one .",
         ["all in lower case here .", "so is the next one ."]),
        ("He said \"go away now.\" Then he left us.",
         ["He said \"go away now.\"", "Then he left us."]),
        ("A heading of four\n\nA paragraph without a stop",
         ["A heading of four", "A paragraph without a stop"]),
        ("The effect was large here. (P < 0.01). Nothing else changed much.",
         ["The effect was large here. (P < 0.01).", "Nothing else changed much."]),
        ("私は学生です。彼は先生ですか？はい！", ["私は学生です。", "彼は先生ですか？", "はい！"]),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("هل هذا سؤال؟ نعم إنه سؤال.", ["هل هذا سؤال؟", "نعم إنه سؤال."]),
        ("", []),
        ("   \n ", []),
    ],
)  # fmt: skip
def test_split_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_thai_is_cut_at_spaces() -> None:
    clause = "ภาษาไทยไม่มีเครื่องหมายจบประโยค"
    text = " ".join([clause] * 12)
    parts = split_sentences(text)
    assert len(parts) > 2
    assert all(len(part) < 200 for part in parts)
    assert " ".join(parts) == text


@given(st.text(max_size=3000))
def test_no_characters_are_lost(text: str) -> None:
    joined = "".join("".join(part.split()) for part in split_sentences(text))
    assert joined == "".join(text.split())


@given(st.text(max_size=300), st.text(max_size=3000), st.integers(1, 20))
def test_lists_are_short_distinct_and_contain_words(
    title: str, text: str, max_sentences: int
) -> None:
    parts = title_and_sentences(title, text, max_sentences)
    assert len(parts) <= max_sentences
    assert all(any(letter.isalnum() for letter in part) for part in parts)
    if len(parts) < max_sentences:
        assert len(set(parts)) == len(parts)


def test_a_long_document_is_covered() -> None:
    text = " ".join(f"This is sentence number {i}." for i in range(1000))
    parts = title_and_sentences("A title", text, 100)
    assert len(parts) == 100
    assert " ".join(parts) == f"A title {text}"
    assert max(map(len, parts)) < 2 * min(map(len, parts)) + 20


def test_leader_lines_are_fast() -> None:
    """Backtracking over a row of dots would take hours here."""
    assert split_sentences("Contents" + "." * 200_000 + "7") != []
    assert split_sentences("!?" * 100_000) != []


def test_joined_pieces_stay_short() -> None:
    parts = split_sentences("Go on. " * 5000)
    assert max(map(len, parts)) <= 1000


# -- locating stored sentences in their document -----------------------------------------------


def test_locate_ignores_the_kind_of_white_space() -> None:
    text = "One  two.\n\nThree\tfour five. Six."
    assert locate("Three four five.", text) == (11, 27)
    assert text[11:27] == "Three\tfour five."
    assert locate("One two.", text) == (0, 9)
    assert locate("hree four", text) == (12, 21)
    assert locate("Seven.", text) is None
    assert locate("", text) is None
    assert locate("a", "") is None


@given(st.text(alphabet="ab. \n\tÄ。", max_size=80))
def test_every_sentence_is_located_in_its_text(text: str) -> None:
    for sentence in split_sentences(text):
        place = locate(sentence, text)
        if place is None:  # short sentences are joined, long ones are cut
            continue
        assert " ".join(text[slice(*place)].split()) == sentence


@given(st.lists(st.text(alphabet="abcÄ", min_size=1), min_size=1), st.sampled_from([" ", "\n\n"]))
def test_consecutive_words_are_located(words: list[str], space: str) -> None:
    text = space.join(words)
    place = locate(" ".join(words), text)
    assert place == (0, len(text))


def test_a_heading_that_repeats_the_title_is_left_out() -> None:
    texts = title_and_sentences(
        "Linseed oil", "# Linseed oil\n\nRags with it can ignite.\n\n# Use\n"
    )
    assert texts[0] == "Linseed oil"
    assert not any("# Linseed oil" in text for text in texts)
    assert any("Rags with it can ignite." in text for text in texts)
