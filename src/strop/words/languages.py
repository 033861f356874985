"""The languages whose words are stemmed: scripts, stop words, and which ones a corpus has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from strop.errors import BadInput

STOP = " "
"""What the term of a stop word begins with."""
STOP_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        # The list of Lucene.
        "english": "a an and are as at be but by for if in into is it no not of on or such that"
        " the their then there these they this to was will with",
        "basque": "eta da ez bat du dira ere zen hau hori izan dute baina edo ziren egin den",
        "catalan": "el la els les de del dels i a en un una que és per amb no al als es se o són"
        " ser va com més però aquest aquesta",
        "czech": "a v na je se že s z do o k i to ve pro jako za by jsou byl nebo ale podle jeho",
        "danish": "og i at det en den til er som på de med han af for ikke der var et fra har om"
        " eller men",
        "dutch": "de het een en van in is dat op te zijn met voor niet aan er om ook als bij maar"
        " door uit of naar werd wordt dan nog",
        "estonian": "ja on ei et see kui ka oli ning oma mis aga või selle tema siis ole pole kes",
        "esperanto": "la kaj de en estas al ke por ne kun kiel sed estis el aŭ pri ĝi kiu oni",
        "finnish": "ja on ei se että hän oli joka mutta ovat kuin tai myös sen kun niin olla hänen"
        " ole jos",
        "french": "le la les de des du et en un une à au aux que qui dans est pour pas par sur ce"
        " se il elle sont ne avec plus ou cette mais son sa ses",
        "german": "der die das und in den von zu mit ist des im für ein eine nicht dem auf sich als"
        " auch es an werden aus er hat dass sie nach wird bei einer um am sind noch wie einem über"
        " einen oder war aber",
        "hungarian": "a az és hogy nem is egy van de ez volt meg már csak mint el vagy azt még ki"
        " ha be lesz",
        "indonesian": "yang dan di dari untuk dengan pada ini itu tidak dalam adalah ke akan oleh"
        " sebagai juga atau telah karena ada bisa",
        "irish": "an na agus ar is i le go ag sé de do a bhí as ó tá sí nach chun seo sin",
        "italian": "il lo la i gli le di del della dei e a un una che in per non è con da si sono"
        " al come più ma alla nel ha dal delle o",
        "lithuanian": "ir yra kad į iš su ne tai buvo bet kaip jo apie už nuo per ar po taip",
        "norwegian": "og i det er en til som på de for av at med ikke den har et om var fra men"
        " eller å ble seg",
        "polish": "i w na z do nie się że jest o to jak a za po od przez dla co są ale był oraz"
        " jego jej lub być",
        "portuguese": "o a os as de do da dos das e em um uma que para com não por no na se mais ao"
        " é como mas foi ou sua ser são",
        "romanian": "și în de la a o cu pe care nu din este un că pentru mai sau se ce au fost prin"
        " sunt al fi",
        "sesotho": "le ba ho ke ya wa tsa ka hore e o mme ha ena bona empa",
        "spanish": "el la los las de del y en un una que a se no es por con para su al lo como más"
        " pero sus o este ha son fue",
        "swedish": "och i att det en är som på av för med den till inte har de ett om var men från"
        " eller sig vid kan",
        "turkish": "ve bir bu da de için ile olarak olan daha çok gibi en ne var değil ama veya"
        " kadar sonra ya",
        "russian": "и в не на с что по как к из за от у для это но о он она они же то а был до так"
        " или при его",
        "serbian": "и у је да на се за од са су не као који то али што из би о па",
        "greek": "και το να του η της με που την από για είναι των ο οι στο σε τα τον δεν θα ότι"
        " στην τη ένα",
        "armenian": "և է որ են ու այդ իր մի մեջ հետ այս ին նա համար",
        "arabic": "في من على إلى أن و هذا هذه التي الذي عن مع لا ما كان هو هي كما أو بعد قد كل بين"
        " ذلك",
        "persian": "و در به از که این را با است برای آن یک های می تا بر شد هم خود نیز او",
        "hindi": "के का में की है और से को पर यह कि ने हैं एक भी था इस लिए ही थे या थी जो हो कर"
        " जाता गया साथ",
        "nepali": "र को मा छ हो का ले यो पनि एक भएको गर्न लागि छन् थियो गरेको तथा",
        "tamil": "ஒரு என்று இந்த மற்றும் என அந்த இது அது உள்ள",
        "yiddish": "און אין די איז דער פון צו מיט האט פאר אויף א",
    }.items()
}
_SCRIPTS: tuple[tuple[int, int, str, tuple[str, ...]], ...] = (
    # first and last character, name, languages; the first stands for a corpus that does not tell
    (0x0370, 0x03FF, "greek", ("greek",)),
    (0x0400, 0x052F, "cyrillic", ("russian", "serbian")),
    (0x0530, 0x058F, "armenian", ("armenian",)),
    (0x0590, 0x05FF, "hebrew", ("yiddish",)),
    (0x0600, 0x077F, "arabic", ("arabic", "persian")),
    (0x0900, 0x097F, "devanagari", ("hindi", "nepali")),
    (0x0B80, 0x0BFF, "tamil", ("tamil",)),
    (0x1F00, 0x1FFF, "greek", ("greek",)),
)
LATIN = "latin"
SAMPLE = 1000
"""How many texts tell the languages of all."""
_OTHERS = frozenset(one for _, _, _, languages in _SCRIPTS for one in languages)
LANGUAGES: Mapping[str, tuple[str, ...]] = {
    LATIN: ("english", *sorted(STOP_WORDS.keys() - _OTHERS - {"english"})),
    **{script: languages for _, _, script, languages in _SCRIPTS},
}
"""The languages of each script; the first is taken where a corpus does not tell."""
_CLEARLY = 1.2
"""So many times as many stop words as the first language of a script another one needs."""
_SHARE = 0.1
_DIFFERENT = 3
"""And its stop words are so large a part of the words of its script, and so many different ones."""


def script_of(character: str) -> str:
    """Return the script of a letter, "" for one whose words have no stems here."""
    code = ord(character)
    if code < 0x250 or 0x1E00 <= code <= 0x1EFF:
        return LATIN
    for first, last, script, _ in _SCRIPTS:
        if first <= code <= last:
            return script
    return ""


def detect_languages(texts: Iterable[str]) -> dict[str, str]:
    """Return the language of each script that these texts are most probably in.

    It is the one with the most of its stop words in them. Hebrew letters need evidence: Yiddish
    stems are wrong for Hebrew.
    """
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text.casefold().split())
    words: Counter[str] = Counter()
    for word, times in seen.items():
        words[script_of(word[0])] += times
    chosen = {}
    for script, languages in LANGUAGES.items():
        found = {one: sum(seen[word] for word in STOP_WORDS[one]) for one in languages}
        best, first = max(languages, key=found.__getitem__), languages[0]
        likely = found[best] > _SHARE * words[script]
        likely &= len(STOP_WORDS[best] & seen.keys()) >= _DIFFERENT
        if likely and found[best] > _CLEARLY * found[first]:
            chosen[script] = best
        elif likely or script != "hebrew":
            chosen[script] = first
    return chosen


def given_language(name: str) -> dict[str, str]:
    """Return the language of each script if texts are in this one, the usual ones of others."""
    chosen = {script: names[0] for script, names in LANGUAGES.items() if script != "hebrew"}
    for script, names in LANGUAGES.items():
        if name in names:
            return {**chosen, script: name}
    known = ", ".join(sorted(STOP_WORDS))
    raise BadInput(f"no stems for {name!r}: the languages are {known}")
