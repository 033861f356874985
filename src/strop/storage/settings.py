"""Named values of an index: format, version, embedder, tuned defaults, names of cache files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from strop.errors import IndexDamaged
from strop.storage.database import Database, damaged, read_marks

T = TypeVar("T")

_MAX_CACHED = 200
"""The maximum number of values that ``once_per_version`` caches."""
_SIDECAR_NAME = re.compile(r'"[a-z]{1,20}-[0-9a-f]{32}"')
"""The stored form of a sidecar's name: never a path, so no file outside the folder is used."""


class Settings:
    """JSON values by name in the catalog's table ``meta``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: tuple[int, dict[str, Any]] = -1, {}

    def get(self, key: str) -> Any:
        """Return one stored value, None if there is none."""
        row = self._database.row("SELECT value FROM meta WHERE key = ?", (key,))
        try:
            return None if row is None else json.loads(row[0])
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"the stored value {key!r} is not JSON ({error})"
            raise damaged(self._database.path, problem) from error

    def mark(self, version: int) -> Any:
        """Return the mark of a recent version: equal marks mean the same history."""
        row = self._database.row("SELECT value FROM meta WHERE key = 'marks'")
        return None if row is None else read_marks(row[0]).get(str(version))

    def number(self, key: str) -> int:
        """Return a stored number that every catalog has; read once in a read transaction."""
        cached = self._database.numbers
        if key not in cached:
            value = self.get(key)
            if type(value) is not int or not 0 <= value < 2**62:
                problem = f"the stored value {key!r} is {value!r:.80}, not a number of 0 or more"
                raise damaged(self._database.path, problem)
            cached[key] = value
        return cached[key]

    def once_per_version(self, key: str, read: Callable[[], T]) -> T:
        """Return ``read()``, cached under ``key`` until the version of the index changes.

        Only for values that change with the version: then a second call reads just the version.
        """
        cached = self._cached
        # A search calls this many times, so it must cost little. ``numbers`` belongs to the present
        # read transaction: it is empty outside of one, and within ``writing``.
        if key in cached[1] and self._database.numbers.get("version") == cached[0]:
            value: T = cached[1][key]
            return value
        if self._database.is_writing:  # the value may have changed before the version does
            return read()
        with self._database.reading():
            version = self.number("version")
            # Replaced as one value: threads may be at different versions. Keys may come from users.
            if cached[0] != version or len(cached[1]) > _MAX_CACHED:
                cached = self._cached = version, {}
            if key not in cached[1]:
                cached[1][key] = read()
            value = cached[1][key]
            return value

    def put(self, *, searchable: bool = False, **values: Any) -> None:
        """Store values; None removes one. Set ``searchable`` if search results depend on them."""
        with self._database.writing(searchable) as connection:
            for key, value in values.items():
                connection.execute("DELETE FROM meta WHERE key = ?", (key,))
                if value is not None:
                    row = key, json.dumps(value)
                    connection.execute("INSERT INTO meta VALUES (?, ?)", row)

    # -- sidecars -------------------------------------------------------------------------

    def sidecar(self, kind: str) -> str | None:
        """Return the name of the current sidecar of a kind, None if there is none."""
        return self.sidecars().get(kind)

    def sidecars(self) -> dict[str, str]:
        """Return the names of all current sidecars, by kind."""
        rows = self._database.rows("SELECT key, value FROM meta WHERE key GLOB 'sidecar:*'")
        for key, name in rows:
            if not isinstance(name, str) or not _SIDECAR_NAME.fullmatch(name):
                raise IndexDamaged(
                    f"{self._database.path}: {name!r:.80} cannot be the name of a {key} file. "
                    "Remove the value from the table meta, or build the index again"
                )
        return {key.removeprefix("sidecar:"): json.loads(name) for key, name in rows}

    def put_sidecar(self, kind: str, name: str | None) -> None:
        """Make a sidecar the current one of its kind; None: there is none."""
        self.put(searchable=False, **{f"sidecar:{kind}": name})
