"""Places of stored sentences in their document."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strop.io.passages import locate
from strop.io.sentences import split_sentences


def test_a_part_is_found_whatever_white_space_is_between() -> None:
    text = "One  two.\n\nThree\tfour five. Six."
    assert locate("Three four five.", text) == (11, 27)
    assert text[11:27] == "Three\tfour five."
    assert locate("One two.", text) == (0, 9)
    assert locate("hree four", text) == (12, 21)
    assert locate("Seven.", text) is None
    assert locate("", text) is None
    assert locate("a", "") is None


@given(st.text(alphabet="ab. \n\tÄ。", max_size=80))
def test_every_sentence_is_found_in_its_text(text: str) -> None:
    for sentence in split_sentences(text):
        place = locate(sentence, text)
        if place is None:  # a short piece joined to the one before it, or a long one cut
            continue
        assert " ".join(text[slice(*place)].split()) == sentence


@given(st.lists(st.text(alphabet="abcÄ", min_size=1), min_size=1), st.sampled_from([" ", "\n\n"]))
def test_words_one_after_the_other_are_found(words: list[str], space: str) -> None:
    text = space.join(words)
    place = locate(" ".join(words), text)
    assert place == (0, len(text))
