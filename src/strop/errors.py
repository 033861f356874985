"""Errors that a user can fix. The command line prints their message and exits with 1."""

from __future__ import annotations

import shlex
import sys


def pip_install(*packages: str) -> str:
    """Return the command that installs packages for this Python; ``pip`` may belong to another."""
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *packages])


class StropError(Exception):
    """The message names the object, the value and the remedy, in one line."""


class BadInput(StropError):
    """A file or a value that cannot be used."""


class UnknownDocument(BadInput):
    """An id that no document and no chunk of an index or a copy has."""

    def __init__(self, place: object, id_: str) -> None:
        super().__init__(
            f"{place} has no document {id_!r}: ids are those of the corpus, or of a chunk (such as"
            " report.md#3)"
        )


class MissingExtra(StropError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: {pip_install(f'strop[{extra}]')}")


class BadIndex(StropError):
    """An index folder that cannot be opened, read or written."""


class IndexBusy(BadIndex):
    """Another process, or another thread of this one, is writing to the index."""


class UnfinishedIndex(UserWarning):
    """A search does not see all documents: some are not embedded yet."""


class DiskFull(BadIndex):
    """The disk of an index is full, or fails."""


class IndexDamaged(BadIndex):
    """Files of the index are missing or incomplete."""


class ServiceError(StropError):
    """A remote service (embeddings, language model) refused or failed permanently.

    ``status`` is the HTTP status, 0 if there was none.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TextRefused(ServiceError):
    """An embedder, remote or local, cannot embed one text; other texts are not affected."""
