from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.generate.filters import (
    apply_filters,
    near,
    normal_form,
    wrong_script,
)

# --- duplicates


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is lift?", "what is lift ."),
        ("boundary-layer flow", "Boundary layer  flow"),
        ("ﬁne Ｔｅｘｔ", "fine text"),
        ("straße", "STRASSE"),
        ("what is “lift”", 'what is "lift"'),
        ("क्या है?", "क्या  है"),
        ("東京 大学", "東京大学。"),
    ],
)
def test_same_normal_form(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mach 1.5", "mach 15"),
        ("mach 1 5", "mach 15"),
        ("C++ classes", "C classes"),
        ("C# classes", "C classes"),
        ("किताब", "कताब"),
        ("5% tax", "5 tax"),
        ("resume", "résumé"),
    ],
)
def test_different_normal_form(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)
    assert not near(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("how to apply the method to a flat plate", "how to apply the method to the flat plate"),
        ("the drag of a cone with a blunt nose", "with a blunt nose the drag of a cone"),
        ("heat flow in composite slabs under load", "heat flow in composite slab under load"),
        ("แพนเธอร์สยอมแพ้ที่คะแนนเท่าไร", "แพนเธอร์สยอมแพ้ที่คะแนนเท่าไรครับ"),
        ("東京大学はいつ誰によって設立されましたか", "東京大学はいつ誰によって設立されました"),
    ],
)  # fmt: skip
def test_near_duplicates(one: str, other: str) -> None:
    assert near(one, other, 0.8)
    assert not near(one, "something else", 0.8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("what is the lift of a wing", "what is the drag of a wing"),
        ("people of the city in 1990 by age and sex", "people of the city in 1991 by age and sex"),
        ("effect of heating on flow", "effect of cooling on flow"),
        ("東京大学はいつ設立されましたか", "京都大学はいつ設立されましたか"),
    ],
)  # fmt: skip
def test_not_near_duplicates(one: str, other: str) -> None:
    assert not near(one, other)


def test_a_dropped_query_drops_no_other() -> None:
    letters = random.Random(0)
    words = ["".join(letters.choices(ascii_lowercase, k=6)) for _ in range(24)]
    chain = [" ".join(words[i : i + 21]) for i in range(4)]
    assert near(chain[0], chain[1])
    assert not near(chain[0], chain[2])
    assert apply_filters(chain, "").positions == [0, 2]
    assert apply_filters([chain[0], *chain[:2], chain[1]], "").dropped == [
        ("duplicate", chain[0]), ("near duplicate", chain[1]), ("duplicate", chain[1]),
    ]  # fmt: skip


# --- scripts

SCRIPTS = {
    "Cyrillic": "крыло было испытано в аэродинамической трубе",
    "Greek": "η πτέρυγα δοκιμάστηκε σε αεροδυναμική σήραγγα",
    "Arabic": "تم اختبار الجناح في نفق الرياح",
    "Hebrew": "הכנף נבדקה במנהרת רוח",
    "Devanagari": "पंख का परीक्षण पवन सुरंग में किया गया",
    "Bengali": "ডানাটি বায়ু সুড়ঙ্গে পরীক্ষা করা হয়েছিল",
    "Tamil": "இறக்கை காற்று சுரங்கத்தில் சோதிக்கப்பட்டது",
    "Telugu": "రెక్క గాలి సొరంగంలో పరీక్షించబడింది",
    "Thai": "ปีกถูกทดสอบในอุโมงค์ลม",
    "Hangul": "날개는 풍동에서 시험되었다",
    "Japanese": "翼は風洞で試験された",
    "Han": "机翼在风洞中进行了测试",
    "Ethiopic": "ክንፉ በነፋስ ዋሻ ውስጥ ተፈትኗል",
    "Latin": "the wing was tested in a wind tunnel",
}


@pytest.mark.parametrize("document", SCRIPTS)
def test_wrong_scripts(document: str) -> None:
    accepted = {document}
    if document == "Japanese":
        accepted.add("Han")  # may be Japanese without kana
    for name, query in SCRIPTS.items():
        assert wrong_script(query, SCRIPTS[document]) == (name not in accepted), name
        assert not wrong_script(query, SCRIPTS[document], [query]), name


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("HTTP request timeout คืออะไร", SCRIPTS["Thai"]),
        ("Los Angeles Rams", SCRIPTS["Thai"] + " Los Angeles Rams " + SCRIPTS["Thai"]),
        ("ใครคือ Tom Brady", "Tom Brady played for the New England Patriots เป็นทีม"),
        ("2015?", SCRIPTS["Hebrew"]),
        ("東京", SCRIPTS["Japanese"]),
        ("ラーメン", SCRIPTS["Japanese"]),
        ("what is α", SCRIPTS["Latin"]),
        ("anything", "12 345"),
        ("ｗｉｎｇ", SCRIPTS["Latin"]),
    ],
)
def test_scripts_that_are_accepted(query: str, document: str) -> None:
    assert not wrong_script(query, document)


# --- all filters


def test_filters_report_what_they_drop() -> None:
    document = "Der Flügel wurde im Windkanal untersucht, und der Auftrieb ist größer."
    queries = [
        "Was ist der Auftrieb?",
        "?!",
        "was ist der auftrieb",
        "подъёмная сила крыла",
        "Beispiel einer Frage",
        "Wie groß ist der Auftrieb eines schmalen Flügels im Windkanal bei hoher Anströmung",
        "Wie groß ist der Auftrieb eines schmalen Flügels im Windkanal bei hohen Anströmung",
        "Theorie des Windkanals",
        "Noch eine Frage dazu",
    ]
    filtered = apply_filters(queries, document, ["Beispiel einer Frage?"], limit=3)
    assert filtered.kept == [queries[0], queries[5], queries[7]]
    assert filtered.positions == [0, 5, 7]
    assert [(reason, queries.index(text)) for reason, text in filtered.dropped] == [
        ("empty", 1), ("duplicate", 2), ("wrong script", 3), ("example", 4),
        ("near duplicate", 6), ("over the limit", 8),
    ]  # fmt: skip
    unlimited = apply_filters(queries, document)
    assert unlimited.positions == [0, 4, 5, 7, 8]


@settings(max_examples=100)
@given(
    st.lists(st.text(max_size=40), max_size=8),
    st.text(max_size=80) | st.sampled_from(list(SCRIPTS.values())),
    st.lists(st.text(max_size=20), max_size=2),
    st.integers(0, 5) | st.none(),
)
def test_filters_on_random_lists(
    queries: list[str], document: str, examples: list[str], limit: int | None
) -> None:
    filtered = apply_filters(queries, document, examples, limit=limit)
    assert filtered.kept == [queries[at] for at in filtered.positions]
    assert filtered.positions == sorted(set(filtered.positions))
    assert sorted([*filtered.kept, *(text for _, text in filtered.dropped)]) == sorted(queries)
    assert limit is None or len(filtered.kept) <= limit
    again = apply_filters(filtered.kept, document, examples, limit=limit)
    assert again.kept == filtered.kept


# --- real queries


def _lines(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        pytest.skip(f"no {path.name} among the real collections")
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.mark.parametrize("style", ["contrastive", "simple"])
def test_good_queries_are_kept(collections: Path, style: str) -> None:
    folder = collections / "cranfield"
    texts = {line["_id"]: line["text"] for line in _lines(folder / "corpus.jsonl")}
    examples = [line["text"] for line in _lines(folder / "queries.jsonl")][:3]
    kept = dropped = 0
    for line in list(_lines(folder / "generated" / f"{style}.jsonl"))[::4]:
        filtered = apply_filters(line["queries"], texts[line["id"]], examples)
        kept += len(filtered.kept)
        dropped += len(filtered.dropped)
    assert kept > 2800
    assert dropped <= 0.002 * kept


@pytest.mark.parametrize("name", ["xquad-hi", "xquad-th"])
def test_scripts_of_real_questions(collections: Path, name: str) -> None:
    folder = collections / name
    texts = {line["_id"]: line["text"] for line in _lines(folder / "corpus.jsonl")}
    questions = {line["_id"]: line["text"] for line in _lines(folder / "queries.jsonl")}
    rows = (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
    pairs = [row.split("\t")[:2] for row in rows]
    assert len(pairs) == 1190
    assert not any(apply_filters([questions[q]], texts[d]).dropped for q, d in pairs)
    english = "what is the number of points given up by the defence"
    caught = sum(wrong_script(english, text) for text in texts.values())
    assert caught >= 0.9 * len(texts)
