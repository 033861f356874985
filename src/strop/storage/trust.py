"""Consent to load an embedder: an index is data, never code and never an address.

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
"""Options of embedders that neither run code nor name a path or an address."""


def trust_file() -> Path:
    """Return the file of the user's consents, in the user's configuration folder."""
    if sys.platform == "win32" and "APPDATA" in os.environ:
        return Path(os.environ["APPDATA"]) / "strop" / "trusted.json"
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "strop" / "trusted.json"


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an embedder that a catalog stores: those that its vectors depend on."""
    return {key: value for key, value in options.items() if key in _VECTOR_OPTIONS | SENSITIVE}


def needs_consent(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return what needs the user's consent: options as ``key=value``, a local model's name."""
    needed = [f"{key}={options[key]}" for key in sorted(SENSITIVE & options.keys())]
    variables = "OPENAI_BASE_URL", "STROP_BASE_URL"
    users_urls = {os.environ.get(variable, "").rstrip("/") for variable in variables} - {""}
    if str(options.get("base_url", "")).rstrip("/") in users_urls:
        needed = [option for option in needed if not option.startswith("base_url=")]
    if name.startswith("st:"):
        source = name.removeprefix("st:")
        looks_local = source.startswith((".", "/", "~", "\\")) or source.count("/") > 1
        if looks_local or Path(source).expanduser().exists():
            needed.append(name)
    return needed


def has_consent(index_id: object, name: str, options: Mapping[str, Any]) -> bool:
    """Return whether the user has accepted an index's embedder with exactly these options."""
    return bool(_consents().get(str(index_id)) == {"name": name, "options": options})


def consent(index_id: object, name: str, options: Mapping[str, Any]) -> None:
    """Record that the user accepts an index's embedder with these options."""
    recorded = stored_options(options)
    if not needs_consent(name, recorded):
        return
    file = trust_file()
    try:
        consents = {**_consents(), str(index_id): {"name": name, "options": recorded}}
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(consents, indent=1), "utf-8")
        new.replace(file)
    except OSError as error:
        warnings.warn(
            f"{file} cannot be written ({error}): give the embedder again when opening the index",
            stacklevel=3,
        )


def _consents() -> dict[str, Any]:
    try:
        consents = json.loads(trust_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return consents if isinstance(consents, dict) else {}
