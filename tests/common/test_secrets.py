"""Keys are removed from the replies of services, in any escaping."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from helpers.lm import KEY
from hypothesis import given
from hypothesis import strategies as st

from strop.common.secrets import HIDDEN, key_for, one_line, redact
from strop.errors import BadInput

ODD_KEY = "sk-\"a/b+c\\d&e<f> %20'~"
"""A key with characters that are escaped."""


def escapes(key: str) -> dict[str, str]:
    """Return the key as it appears in JSON, a URL, HTML or a dump."""
    return {
        "plain": key,
        "json": json.dumps(key)[1:-1],
        "json, all escaped": "".join(f"\\u{ord(c):04x}" for c in key),
        "json, upper case": "".join(f"\\u{ord(c):04X}" for c in key),
        "json, escaped twice": "".join(f"\\\\u{ord(c):04x}" for c in key),
        "json, half": "".join(c if i % 2 else f"\\u{ord(c):04x}" for i, c in enumerate(key)),
        "url": quote(key, safe=""),
        "url, all escaped": "".join(f"%{ord(c):02X}" for c in key),
        "url, twice": quote("".join(f"%{ord(c):02x}" for c in key)),
        "html": html.escape(key).replace("&quot;", "&#34;").replace("&lt;", "&#x3c;"),
        "html, all escaped": "".join(f"&#{ord(c)};" for c in key),
        "html, hexadecimal": "".join(f"&#x{ord(c):04x};" for c in key),
        "python": "".join(f"\\x{ord(c):02x}" for c in key),
        "hexadecimal": key.encode().hex(),
        "hexadecimal, upper case": key.encode().hex().upper(),
    }


@pytest.mark.parametrize("form", escapes(KEY))
def test_escaped_keys_are_redacted(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    redacted = redact(f"before {escapes(KEY)[form]} after")
    assert redacted == f"before {HIDDEN} after"


# A bare backslash next to an escape is not JSON; escaping only quotes and brackets is not HTML.
@pytest.mark.parametrize("form", sorted({*escapes(ODD_KEY)} - {"html", "json, half"}))
def test_keys_with_special_characters_are_redacted(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", ODD_KEY)
    assert redact(f"({escapes(ODD_KEY)[form]})") == f"({HIDDEN})"


@pytest.mark.parametrize("form", sorted({*escapes(KEY)} - {"plain"}))
def test_the_rest_of_a_text_is_unchanged(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    before, after = (json.dumps({"a": 'tab\t "quoted" \\ \x1b %41 &#65; ü'}) for _ in range(2))
    hidden = redact(f"{before} {escapes(KEY)[form]} {after} {escapes(KEY)[form]}")
    assert hidden == f"{before} {HIDDEN} {after} {HIDDEN}"
    assert "\x1b" not in one_line(f"\\u001b[2J {escapes(KEY)[form]}")


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", [b"", b"x", b"xy", b"Bearer "])
@pytest.mark.parametrize("after", [b"", b"\n", b"ab", b"\xff\xff\xff"])
def test_keys_in_base64_are_redacted(
    encode: object, before: bytes, after: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(encode)
    key = KEY + "~~?>"
    monkeypatch.setenv("STROP_API_KEY", key)
    redacted = redact(encode(before + key.encode() + after).decode())
    assert HIDDEN in redacted
    parts = redacted.partition(HIDDEN)
    assert len(parts[0]) <= len(before) * 4 / 3 + 3
    assert len(parts[2]) <= len(after) * 4 / 3 + 4


@given(st.text(max_size=60), st.text(max_size=60))
def test_texts_without_keys_are_unchanged(left: str, right: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", KEY)
        assert redact(left) == left
        assert KEY not in redact(left + KEY + right)


def test_short_keys_are_not_redacted_from_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local servers need no key; users set a word instead."""
    monkeypatch.setenv("STROP_API_KEY", "ollama")
    assert redact("how to install ollama") == "how to install ollama"
    assert one_line("Incorrect key: ollama") == f"Incorrect key: {HIDDEN}"


def test_long_texts_of_escapes_are_redacted_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_API_KEY", "\\\\\\\\" + KEY)
    for text in ("\\" * 200_000, "%25" * 70_000, "&#0000" * 40_000, "\\u0073" * 40_000):
        assert redact(text)


def test_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_API_KEY", KEY)
    assert one_line(f" a\n\tb {KEY} \ud800 ") == f"a b {HIDDEN} ?"
    assert len(one_line("x" * 10_000_000)) == 201
    assert KEY[:8] not in one_line("x" * 3990 + KEY), "what is cut is cut after it was hidden"
    assert KEY[:12] not in one_line("x" * 190 + KEY)
    deep: list[object] = []
    for _ in range(200_000):
        deep = [deep]
    assert one_line(deep) == "a list, nested deeply"
    while deep:  # freeing it at once would recurse as deeply
        deep = deep.pop()  # type: ignore[assignment]


def test_the_key_for_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRST_KEY", raising=False)
    monkeypatch.setenv("SECOND_KEY", KEY)
    assert key_for("host", ("FIRST_KEY", "SECOND_KEY")) == KEY
    assert key_for("host", ("FIRST_KEY",)) is None
    monkeypatch.setenv("FIRST_KEY", KEY + "\n")
    with pytest.raises(BadInput, match="FIRST_KEY holds characters that no key has") as caught:
        key_for("host", ("FIRST_KEY", "SECOND_KEY"))
    assert KEY not in str(caught.value)
