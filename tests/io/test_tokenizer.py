"""Terms of texts: scripts, compounds, code, numbers, stop words, stems."""

from __future__ import annotations

import threading
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.errors import BadInput
from strop.io.languages import LANGUAGES, STOP_WORDS, detect_languages
from strop.io.tokenizer import LONGEST, Tokenizer

TOKENIZER = Tokenizer()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Running foxes", ["run", "fox"]),
        ("vitamin C", ["vitamin", "c"]),
        ("the fox", [" the", "fox"]),
        ("C++ or C#", ["c", "c++", " or", "c", "c#"]),
        ("os.path.join", ["os", "path", "join", "ospathjoin"]),
        ("camelCase", ["camel", "case", "camelcas"]),
        ("snake_case __init__", ["snake", "case", "snakecas", "init"]),
        ("XMLHttpRequest", ["xml", "http", "request", "xmlhttprequest"]),
        ("IDs", ["id"]),
        ("long-term", ["long", "term", "longterm"]),
        ("e-mail", ["mail", "email"]),
        ("U.S.A. AT&T", ["usa", " at", "att"]),
        ("3.14 10,000 1,5", ["3.14", "10000", "1.5"]),
        ("Alzheimer's don’t", ["alzheim", "don"]),
        ("l'homme", ["homm"]),
        ("x'y", ["xy"]),
        ("Café CAFÉ cafe", ["cafe"] * 3),
        ("ﬁre ＡＢＣ", ["fire", "abc"]),
        ("soft\u00adware", ["softwar"]),
        ("naïve", ["naiv"]),
        ("हिंदी भाषा", ["हिंद", "भाष"]),
        ("русские книги", ["русск", "книг"]),
        ("йод", ["йод"]),  # not an accent
        ("Άνθρωπος", ["ανθρωπ"]),
        ("குழந்தைகள்", ["குழந்தை"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),  # no stems, but whole words
        ("猫", ["猫"]),
        ("東京都", ["東", "京", "都", "東京", "京都"]),
        ("タワー・ビル", ["タ", "ワ", "ー", "タワ", "ワー", "ビ", "ル", "ビル"]),
        ("น้ำ", ["น้ํ", "า", "น้ํา"]),  # a letter keeps its marks
        ("Python语言", ["python", "语", "言", "语言"]),
        ("___ ++ __++ . '", []),
        ("", []),
    ],
)
def test_terms_of_a_document(text: str, terms: list[str]) -> None:
    assert TOKENIZER.document(text) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("the foxes", ["fox"]),
        ("to be or not to be", [" to", " be", " or", " not", " to", " be"]),
        ("the who", ["who"]),
        ("long-term e-mail", ["long", "term", "mail", "email"]),
        ("os.path.join", ["os", "path", "join", "ospathjoin"]),
        ("東京都", ["東京", "京都"]),
        ("猫 の 写真", ["猫", "の", "写真"]),
        ("?", []),
    ],
)
def test_terms_of_a_query(text: str, terms: list[str]) -> None:
    assert TOKENIZER.query(text) == terms


@given(st.text())
def test_query_terms_are_among_the_document_terms(text: str) -> None:
    document, query = TOKENIZER.document(text), TOKENIZER.query(text)
    assert set(query) <= set(document)
    assert bool(query) == bool(document)
    for term in document:
        assert term.strip()
        assert 0 < len(term) <= 4 * LONGEST
        term.encode()


@given(st.text())
def test_terms_do_not_depend_on_the_normal_form(text: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normalized = unicodedata.normalize(form, text)
        assert TOKENIZER.document(normalized) == TOKENIZER.document(text)


@given(st.lists(st.sampled_from(["fox", "c", "चाय", "東京", "10", "e-mail", "Ünal"])))
def test_white_space_separates_terms(words: list[str]) -> None:
    terms = [term for word in words for term in TOKENIZER.document(word)]
    assert TOKENIZER.document(" \n".join(words)) == terms
    assert TOKENIZER.document("\u3000".join(words)) == terms


@given(st.text(st.characters(codec="ascii")))
def test_ascii_terms_are_the_same_beside_other_letters(text: str) -> None:
    assert TOKENIZER.document(text + " é") == [*TOKENIZER.document(text), "e"]


def test_stems_depend_on_the_language() -> None:
    german = Tokenizer({"latin": "german"})
    assert german.document("Häuser und Haus") == ["haus", " und", "haus"]
    assert Tokenizer({}).document("Häuser und") == ["hauser", "und"]


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'klingon'.*english"):
        Tokenizer({"latin": "klingon"})


def test_threads_share_a_tokenizer() -> None:
    words = [f"{first}{second}ing" for first in "abcdefgh" for second in "klmnoprst"] * 3
    expected = [TOKENIZER.document(word) for word in words]
    shared, results = Tokenizer(), {}

    def work(name: int) -> None:
        results[name] = [shared.document(word) for word in words]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [expected] * 4


# -- languages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "script", "language"),
    [
        ("The cat sat on the mat and looked at the dog in the garden.", "latin", "english"),
        ("Der Hund ist nicht mit dem Kind auf die Straße gegangen.", "latin", "german"),
        ("Le chat est sur la table et il ne veut pas partir avec le chien.", "latin", "french"),
        ("El perro de la casa no es de los vecinos, pero está en el jardín.", "latin", "spanish"),
        ("O cão não está em casa, mas foi para a rua com os outros.", "latin", "portuguese"),
        ("Il cane non è della signora che abita con gli altri nel palazzo.", "latin", "italian"),
        ("Kissa on talossa ja se ei ole iloinen, mutta hän oli.", "latin", "finnish"),
        ("Kot jest w domu i nie ma go na dworze, ale to się zmieni.", "latin", "polish"),
        ("Это книга о том, что он не был на войне.", "cyrillic", "russian"),
        ("Он је рекао да су се вратили и да је то за њега.", "cyrillic", "serbian"),
        ("این کتاب را از او گرفتم که در خانه است", "arabic", "persian"),
        ("الكتاب في البيت من على هذا الطريق", "arabic", "arabic"),
        ("यह किताब मेरे घर में है और उस की है", "devanagari", "hindi"),
        ("यो किताब मेरो घर मा छ र राम्रो छ", "devanagari", "nepali"),
    ],
)
def test_the_language_of_a_corpus(text: str, script: str, language: str) -> None:
    assert detect_languages([text])[script] == language


@pytest.mark.parametrize("texts", [[], [""], ["widget 200 mm"], ["ABS na v profile steel na 20"]])
def test_too_little_evidence_is_english(texts: list[str]) -> None:
    assert detect_languages(texts)["latin"] == "english"


def test_hebrew_letters_are_yiddish_only_with_evidence() -> None:
    assert "hebrew" not in detect_languages(["שלום עולם"])
    assert detect_languages(["דער מאן איז אין די שטוב און"])["hebrew"] == "yiddish"


def test_every_language_has_stems_and_stop_words() -> None:
    for script, languages in LANGUAGES.items():
        for language in languages:
            assert STOP_WORDS[language]
            assert Tokenizer({script: language}).document("x") == ["x"]
