"""Whose word is taken for loading an embedder: an index is data, never code and never an address.

A catalog names its embedder and the options that its vectors depend on. Some of these could run
code (``trust_remote_code``), read a local folder (``st:/path``, ``path``) or send texts and the
user's key somewhere (``base_url``). They are used only if the user gave them: now, when the index
was created, or by consent (``strop.storage.trust.consent``). Consent is kept per index id in the
user's own configuration folder, never in the index, and covers exactly those options.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SENSITIVE = frozenset({"base_url", "path", "trust_remote_code"})
_VECTOR_OPTIONS = frozenset(
    {"dimensions", "dtype", "input_type", "max_chars", "max_length", "pooling", "prompts",
     "revision", "task", "dim"}
)  # fmt: skip
"""Options of the families of embedders that neither run code nor name a place."""


def trust_file() -> Path:
    """Return the file of the user's consents, in the user's configuration folder."""
    if sys.platform == "win32" and "APPDATA" in os.environ:
        return Path(os.environ["APPDATA"]) / "strop" / "trusted.json"
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "strop" / "trusted.json"


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a catalog keeps of an embedder's options: what its vectors depend on."""
    return {key: value for key, value in options.items() if key in _VECTOR_OPTIONS | SENSITIVE}


def needs_consent(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return what of a stored embedder must not be used without the user's word."""
    needed = [f"{key}={options[key]}" for key in sorted(SENSITIVE & options.keys())]
    own = {os.environ.get(key, "").rstrip("/") for key in ("OPENAI_BASE_URL", "STROP_BASE_URL")}
    if str(options.get("base_url", "")).rstrip("/") in own - {""}:  # the user's environment says so
        needed = [one for one in needed if not one.startswith("base_url=")]
    if name.startswith("st:"):
        source = name.removeprefix("st:")
        looks_local = source.startswith((".", "/", "~", "\\")) or source.count("/") > 1
        if looks_local or Path(source).expanduser().exists():
            needed.append(name)
    return needed


def has_consent(index_id: object, name: str, options: Mapping[str, Any]) -> bool:
    """Tell whether the user takes an index's embedder with exactly these stored options."""
    return bool(_consents().get(str(index_id)) == {"name": name, "options": options})


def consent(index_id: object, name: str, options: Mapping[str, Any]) -> None:
    """Remember that the user takes an index's embedder with these options."""
    kept = stored_options(options)
    if not needs_consent(name, kept):
        return
    file = trust_file()
    try:
        known = {**_consents(), str(index_id): {"name": name, "options": kept}}
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(known, indent=1), "utf-8")
        new.replace(file)
    except OSError as error:
        warnings.warn(
            f"{file} cannot be written ({error}): give the embedder again when opening the index",
            stacklevel=3,
        )


def _consents() -> dict[str, Any]:
    try:
        known = json.loads(trust_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
