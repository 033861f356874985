"""How many tokens a text has, roughly, without any tokenizer."""

from __future__ import annotations

import math
import re

# Tokens per character. Vocabularies differ by a third and more between vendors and generations;
# these lie in the upper half of today's tokenizers, so that estimates of money are rather too
# high.
_LATIN = 0.25
_RATES = (
    (re.compile(r"[\u00c0-\u024f\u1e00-\u1eff]+"), 0.8),  # Latin letters with accents
    (re.compile(r"[\u0370-\u03ff\u0400-\u052f]+"), 0.4),  # Greek, Cyrillic
    (re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]+"), 0.5),  # Hebrew, Arabic
    (re.compile(r"[\u0900-\u0dff]+"), 0.6),  # Devanagari and the other scripts of India
    (re.compile(r"[\u0e00-\u109f\u1780-\u17ff]+"), 0.7),  # Thai, Lao, Tibetan, Burmese, Khmer
    (re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+"), 1.0),  # Korean
    (re.compile(r"[\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"),
     1.2),  # Chinese, Japanese
    (re.compile(r"[\U00010000-\U0001ffff]+"), 2.0),  # emoji, rare scripts
)  # fmt: skip


def count_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter per Latin character, more in other scripts.

    It is an estimate for prices and limits, without any vendor's tokenizer: for English prose
    usually within a quarter of what a service counts, further off for code, tables and other
    scripts.
    """
    if not text:
        return 0
    if text.isascii():
        return math.ceil(len(text) * _LATIN)
    total, latin = 0.0, len(text)
    for script, rate in _RATES:
        characters = sum(map(len, script.findall(text)))
        total += characters * rate
        latin -= characters
    return math.ceil(total + latin * _LATIN)
