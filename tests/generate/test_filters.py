from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.generate.query_filters import (
    apply_filters,
    drifted_to_english,
    exact_duplicates,
    near_duplicates,
    normal_form,
    round_trip_ranks,
    told_apart,
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
    assert exact_duplicates([one, "between", other]) == [2]


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
def test_other_normal_form(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)
    assert exact_duplicates([one, other]) == []
    assert near_duplicates([one, other]) == []


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
    assert near_duplicates([one, "something else", other], 0.8) == [2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("what is the lift of a wing", "what is the drag of a wing"),
        ("people of the city in 1990 by age and sex", "people of the city in 1991 by age and sex"),
        ("effect of heating on flow", "effect of cooling on flow"),
        ("東京大学はいつ設立されましたか", "京都大学はいつ設立されましたか"),
    ],
)  # fmt: skip
def test_what_is_not_near(one: str, other: str) -> None:
    assert near_duplicates([one, other]) == []


def test_a_dropped_query_drops_no_other() -> None:
    words = [f"w{chr(97 + i)}" for i in range(20)]
    chain = [" ".join(words[i : i + 12]) for i in range(4)]
    assert near_duplicates(chain, 0.8) == [1, 3]
    assert near_duplicates([]) == exact_duplicates([]) == []


# --- scripts and languages

TEXTS = {
    "English": "The wing was tested in a wind tunnel, and it was found that the lift of the "
    "wing is larger than what had been predicted from theory.",
    "German": "Der Flügel wurde im Windkanal untersucht, und es zeigte sich, dass der "
    "Auftrieb größer ist als der Wert, den die Theorie für diesen Fall angibt.",
    "French": "L'aile a été étudiée dans la soufflerie et on a trouvé que la portance est "
    "plus grande que celle que la théorie donne pour ce cas.",
    "Spanish": "El ala fue estudiada en el túnel de viento y se encontró que la sustentación "
    "es mayor que la que da la teoría para este caso.",
    "Italian": "L'ala è stata studiata nella galleria del vento e si è visto che la portanza "
    "è più grande di quella che la teoria dà per questo caso.",
    "Portuguese": "A asa foi estudada no túnel de vento e verificou-se que a sustentação é "
    "maior do que a prevista pela teoria para os casos em estudo.",
    "Dutch": "De vleugel werd in de windtunnel onderzocht en het bleek dat de draagkracht "
    "groter is dan de waarde die de theorie voor dit geval geeft.",
    "Swedish": "Vingen undersöktes i vindtunneln och det visade sig att lyftkraften är "
    "större än det värde som teorin ger för det här fallet.",
    "Swahili": "Bawa lilichunguzwa katika handaki la upepo na ilikuwa wazi kwamba nguvu ya "
    "kuinua ni kubwa kwa kiasi kuliko ile ya nadharia.",
    "Indonesian": "Sayap itu diuji dalam terowongan angin dan hasilnya adalah gaya angkat "
    "yang lebih besar dari nilai yang telah diperkirakan oleh teori untuk kasus ini.",
    "Turkish": "Kanat bir rüzgar tünelinde incelendi ve taşıma kuvvetinin bu durum için "
    "teorinin verdiği değerden daha büyük olduğu görüldü.",
    "Polish": "Skrzydło zostało zbadane w tunelu i okazało się, że siła nośna jest większa "
    "od tej, która wynika z teorii dla tego przypadku.",
    "Vietnamese": "Cánh đã được thử nghiệm trong hầm gió và lực nâng là lớn hơn giá trị của "
    "lý thuyết cho trường hợp này.",
}
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
@pytest.mark.parametrize("query", SCRIPTS)
def test_scripts(document: str, query: str) -> None:
    related = (document, query) == ("Japanese", "Han")  # may be Japanese without kana
    assert wrong_script(SCRIPTS[query], SCRIPTS[document]) == (document != query and not related)
    assert not wrong_script(SCRIPTS[query], SCRIPTS[document], [SCRIPTS[query]])


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
def test_what_is_no_wrong_script(query: str, document: str) -> None:
    assert not wrong_script(query, document)


@pytest.mark.parametrize("name", TEXTS)
def test_drift_to_english(name: str) -> None:
    english = [
        "what is the effect of wind tunnel walls on the lift",
        "how does lift differ from theory",
        "why is the lift larger than predicted",
    ]
    for query in english:
        assert drifted_to_english(query, TEXTS[name]) == (name != "English")
        assert not drifted_to_english(query, TEXTS[name], ["what is the drag of a wing"])
    for other, text in TEXTS.items():
        if other != "English":
            assert not drifted_to_english(text, TEXTS[name])
    for query in ("wind tunnel", "NACA 0012", "lift of wing", "", "Auftrieb"):
        assert not drifted_to_english(query, TEXTS[name])


def test_titles_in_the_document_are_no_drift() -> None:
    text = TEXTS["German"] + " Der Film The Lord of the Rings ist nicht gemeint."
    assert not drifted_to_english("the lord of the rings", text)
    assert drifted_to_english("who is the lord of the rings", text)


# --- all together


def test_filters_report_what_they_drop() -> None:
    queries = [
        "Was ist der Auftrieb?",
        "?!",
        "was ist der auftrieb",
        "подъёмная сила крыла",
        "what is the lift of a wing",
        "Beispiel einer Frage",
        "Wie groß ist der Auftrieb eines Flügels im Windkanal bei hoher Anströmung",
        "Wie groß ist der Auftrieb eines Flügels im Windkanal bei hohen Anströmung",
        "Theorie des Windkanals",
        "Noch eine Frage dazu",
    ]
    found = apply_filters(queries, TEXTS["German"], ["Beispiel einer Frage?"], near=0.85, most=3)
    assert found.kept == [queries[0], queries[6], queries[8]]
    assert found.positions == [0, 6, 8]
    assert [(reason, queries.index(text)) for reason, text in found.dropped_texts] == [
        ("empty", 1), ("duplicate", 2), ("script", 3), ("language", 4), ("example", 5),
        ("near duplicate", 7), ("too many", 9),
    ]  # fmt: skip
    assert found.dropped == dict.fromkeys([reason for reason, _ in found.dropped_texts], 1)
    loose = apply_filters(queries, TEXTS["German"], near=None, script=False, language=False)
    assert loose.dropped == {"empty": 1, "duplicate": 1}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(max_size=40), max_size=8),
    st.text(max_size=80) | st.sampled_from([*TEXTS.values(), *SCRIPTS.values()]),
    st.lists(st.text(max_size=20), max_size=2),
    st.integers(0, 5) | st.none(),
)
def test_any_list_is_filtered(
    queries: list[str], document: str, examples: list[str], most: int | None
) -> None:
    found = apply_filters(queries, document, examples, most=most)
    assert found.kept == [queries[at] for at in found.positions]
    assert found.positions == sorted(set(found.positions))
    assert len(found.kept) + found.dropped.total() == len(queries)
    assert len(found.dropped_texts) == found.dropped.total()
    assert most is None or len(found.kept) <= most
    again = apply_filters(found.kept, document, examples, most=most)
    assert again.kept == found.kept


# --- measures


def test_told_apart_are_those_nearest_their_own() -> None:
    queries = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.6]], np.float32)
    own = np.array([2, 0], np.float32)
    references = np.array([[0, 3], [0.1, 0.1]], np.float32)
    assert told_apart(queries, own, references).tolist() == [True, False, False, False]
    assert told_apart(queries, own, references[:1]).tolist() == [True, False, True, False]
    assert told_apart(queries, own, references[:0]).all()
    assert not len(told_apart(queries[:0], own, references))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 9))
def test_round_trip_ranks_are_those_of_a_sort(seed: int, documents: int, queries: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.integers(-2, 3, (documents, 3)).astype(np.float32)
    wanted = generator.integers(-2, 3, (queries, 3)).astype(np.float32)
    own = generator.integers(0, documents, queries)
    lengths = np.linalg.norm(vectors, axis=1)
    unit = np.divide(vectors, lengths[:, None], where=lengths[:, None] > 0, out=vectors.copy())
    for row, rank in enumerate(round_trip_ranks(wanted, vectors, own)):
        scores = unit @ wanted[row]
        mine = scores[own[row]]
        surely = int((scores > mine + 1e-5).sum())
        ties = int((np.abs(scores - mine) <= 1e-5).sum())
        assert surely < rank <= surely + ties


def test_equal_scores_are_ranked_by_row() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0, 0]], np.float32)
    ranks = round_trip_ranks(np.array([[1, 0]] * 4, np.float32), vectors, np.arange(4))
    assert ranks.tolist() == [1, 2, 3, 4]


# --- real queries


def _lines(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        pytest.skip(f"no {path.name} among the real collections")
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.mark.parametrize("style", ["contrastive", "simple"])
def test_good_queries_stay(collections: Path, style: str) -> None:
    folder = collections / "cranfield"
    texts = {line["_id"]: line["text"] for line in _lines(folder / "corpus.jsonl")}
    examples = [line["text"] for line in _lines(folder / "queries.jsonl")][:3]
    kept = dropped = 0
    for line in list(_lines(folder / "generated" / f"{style}.jsonl"))[::4]:
        found = apply_filters(line["queries"], texts[line["id"]], examples)
        kept += len(found.kept)
        dropped += found.dropped.total()
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
