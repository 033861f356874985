"""Named values of an index: format, version, embedder, tuned defaults, names of cache files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from strop.errors import IndexDamaged
from strop.storage.database import Database, damaged, read_marks

T = TypeVar("T")

_REMEMBERED = 200
"""Values of a version that are remembered."""
_SIDECAR_NAME = re.compile(r'"[a-z]{1,20}-[0-9a-f]{32}"')
"""How a sidecar's name is stored: never a path, so nothing outside the folder is touched."""


class Settings:
    """JSON values by name in the catalog's table ``meta``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: tuple[int, dict[str, Any]] = -1, {}

    def get(self, key: str) -> Any:
        """Return one stored value, None if there is none."""
        row = self._database.row("SELECT value FROM meta WHERE key = ?", (key,))
        try:
            return None if row is None else json.loads(row[0])
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"the stored value {key!r} is not JSON ({error})"
            raise damaged(self._database.path, problem) from error

    def mark(self, version: int) -> Any:
        """Return the mark of one of the last versions: only the same history has the same one."""
        row = self._database.row("SELECT value FROM meta WHERE key = 'marks'")
        return None if row is None else read_marks(row[0]).get(str(version))

    def number(self, key: str) -> int:
        """Return a stored number that every catalog has; read once in a read transaction."""
        known = self._database.numbers
        if key not in known:
            value = self.get(key)
            if type(value) is not int or not 0 <= value < 2**62:
                problem = f"the stored value {key!r} is {value!r:.80}, not a number of 0 or more"
                raise damaged(self._database.path, problem)
            known[key] = value
        return known[key]

    def once_per_version(self, key: str, read: Callable[[], T]) -> T:
        """Return ``read()``, remembered under ``key`` until the version of the index changes.

        For what only searchable changes can alter: reading it again costs one look at the version.
        """
        known = self._remembered
        # Many times in a search, so it must cost little. ``numbers`` are of a read transaction that
        # is under way: they are empty outside of one, and within ``writing``.
        if key in known[1] and self._database.numbers.get("version") == known[0]:
            value: T = known[1][key]
            return value
        if self._database.is_writing:  # it may have changed and the version has not yet
            return read()
        with self._database.reading():
            version = self.number("version")
            # Replaced as one value: threads may be at different versions. Keys may come from users.
            if known[0] != version or len(known[1]) > _REMEMBERED:
                known = self._remembered = version, {}
            if key not in known[1]:
                known[1][key] = read()
            value = known[1][key]
            return value

    def put(self, *, searchable: bool = False, **values: Any) -> None:
        """Store values; None removes one. Say ``searchable`` if search results depend on them."""
        with self._database.writing(searchable) as connection:
            for key, value in values.items():
                connection.execute("DELETE FROM meta WHERE key = ?", (key,))
                if value is not None:
                    row = key, json.dumps(value)
                    connection.execute("INSERT INTO meta VALUES (?, ?)", row)

    # -- sidecars -------------------------------------------------------------------------

    def sidecar(self, kind: str) -> str | None:
        """Return the name of the sidecar of a kind that counts, None if there is none."""
        return self.sidecars().get(kind)

    def sidecars(self) -> dict[str, str]:
        """Return the names of all sidecars that count, by kind."""
        rows = self._database.rows("SELECT key, value FROM meta WHERE key GLOB 'sidecar:*'")
        for key, name in rows:
            if not isinstance(name, str) or not _SIDECAR_NAME.fullmatch(name):
                raise IndexDamaged(
                    f"{self._database.path}: {name!r:.80} cannot be the name of a {key} file. "
                    "Remove the value from the table meta, or build the index again"
                )
        return {key.removeprefix("sidecar:"): json.loads(name) for key, name in rows}

    def put_sidecar(self, kind: str, name: str | None) -> None:
        """Let a sidecar count as the one of its kind, or none."""
        self.put(searchable=False, **{f"sidecar:{kind}": name})
