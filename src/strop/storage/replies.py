"""Questions to language models and their replies: what was paid for is never asked for again.

A reply's key is a hash of all that led to it: the model and its options, the instructions, the
document, the references, the limits. Whatever changes makes another key, so a stored reply never
stands for anything but its own question. Replies stay when their query set or document goes.

While a model is asked, room on the disk is kept back for replies that are paid for already.
A request that is out in a batch is not asked again until the batch has been collected.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import IO, Any

from strop.errors import BadInput, DiskFull
from strop.lm import Failure, Reply, Usage
from strop.storage.database import Database
from strop.storage.settings import Settings
from strop.storage.vectors import cannot_write

RESERVE_BYTES = 4 << 20
NEEDED_BYTES = 4 << 20
"""With less room than this beside the reserve, no further reply is asked for."""
_FILE = "file:"
"""How ids begin that stand for requests written to files, for each provenance one."""


@dataclass(frozen=True)
class Provenance:
    """Where a reply comes from: kept with each."""

    lm: str
    options: dict[str, Any]
    settings: dict[str, Any]


def _now() -> str:
    """Return the time as the catalog stores it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def reply_key(lm: str, options: dict[str, Any], parts: list[Any]) -> str:
    """Return the key of a question: a hash of the model, its options and the prompt's parts."""
    content = json.dumps([lm, options, parts], ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class Replies:
    """The replies and failures in a catalog, by the key of their question."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._folder = database.path.parent
        self._reserves: list[IO[bytes]] = []

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` that have a reply."""
        known = "SELECT key FROM replies WHERE key IN (SELECT value FROM json_each(?))"
        return set(self._database.column(known, (json.dumps(list(keys)),)))

    def failed(self, keys: Iterable[str]) -> dict[str, bool]:
        """Return those of ``keys`` that failed, and whether for good."""
        rows = self._database.rows(
            "SELECT key, final FROM failures WHERE key IN (SELECT value FROM json_each(?))",
            (json.dumps(list(keys)),),
        )
        return {key: bool(final) for key, final in rows}

    def read(self, key: str) -> Reply | None:
        """Return a stored reply."""
        row = self._database.row(
            "SELECT text, truncated, model, input_tokens, output_tokens, cached_tokens, seconds"
            " FROM replies WHERE key = ?",
            (key,),
        )
        if row is None:
            return None
        text, truncated, model, *usage, seconds = row
        return Reply(key, text, bool(truncated), model, Usage(*usage), seconds)

    def save(
        self,
        replies: Iterable[tuple[Reply, int]],
        failures: Iterable[tuple[Failure, int]],
        provenance: Provenance,
    ) -> None:
        """Keep replies and failures with the number of the document they are for, in one commit.

        On a full disk they are kept in the reserve, if there is one, and the error is raised then.
        """
        answers = list(replies), list(failures)
        try:
            self._save(*answers, provenance)
        except DiskFull:
            if self.has_reserve:
                while self._reserves:
                    self._reserves.pop().close()
                self._save(*answers, provenance)
            raise

    @property
    def has_reserve(self) -> bool:
        """Whether room on the disk is kept back now."""
        return bool(self._reserves)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve disk space for replies while calls are made."""
        with self._reserve() as room:
            self._reserves.append(room)
            try:
                yield
            finally:
                if room in self._reserves:  # else it was needed
                    self._reserves.remove(room)

    def _reserve(self) -> IO[bytes]:
        """Return a file that takes room on the disk; closing it gives the room to the replies.

        It has no name, so nothing is left of it when the process is killed.
        """
        try:
            room = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (the caller closes it)
            try:
                room.write(os.urandom(RESERVE_BYTES))  # a file system may compress zeros to nothing
                room.flush()
                os.fsync(room.fileno())
            except BaseException:
                room.close()
                raise
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return room

    def room_problem(self) -> DiskFull | None:
        """Return why no further replies should be asked for, None if there is room for them."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:  # then writing says what is wrong
            return None
        if free >= NEEDED_BYTES:
            return None
        return DiskFull(
            f"the disk of {self._folder} has {free / 1e6:.1f} MB left: no more calls are made, so "
            "that replies that are paid for can still be stored. Free some space and run the "
            "command again"
        )

    def _save(
        self,
        replies: Iterable[tuple[Reply, int]],
        failures: Iterable[tuple[Failure, int]],
        provenance: Provenance,
    ) -> None:
        created = _now()
        source = provenance.lm, _as_text(provenance.options), _as_text(provenance.settings)
        rows = [
            (
                reply.key, number, *source, reply.model, reply.text, reply.truncated,
                reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens,
                reply.seconds, created,
            )
            for reply, number in replies
        ]  # fmt: skip
        with self._database.writing(searchable=False) as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.executemany("DELETE FROM failures WHERE key = ?", [row[:1] for row in rows])
            connection.executemany(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?)",
                [(one.key, number, one.error, one.final, created) for one, number in failures],
            )

    def overview(self, samples: int) -> dict[str, Any]:
        """Return what models have answered so far, failures by message, and the newest replies."""
        rows = self._database.named_rows
        models = rows(
            "SELECT lm, model, count(*) AS replies, count(DISTINCT number) AS documents,"
            " sum(truncated) AS truncated, sum(input_tokens) AS input_tokens,"
            " sum(output_tokens) AS output_tokens, sum(cached_tokens) AS cached_tokens,"
            " min(created) AS first, max(created) AS last"
            " FROM replies GROUP BY lm, model ORDER BY last DESC"
        )
        failures = rows(
            "SELECT error, count(*) AS count, max(created) AS last FROM failures GROUP BY error"
            " ORDER BY count(*) DESC LIMIT ?",
            (samples,),
        )
        newest = rows(
            "SELECT documents.id AS id, model, substr(replies.text, 1, 2000) AS text, created"
            " FROM replies JOIN documents USING (number) ORDER BY created DESC LIMIT ?",
            (samples,),
        )
        return {"models": models, "failures": failures, "newest": newest}

    def totals(self, lm: str, settings: dict[str, Any]) -> tuple[int, Usage, float]:
        """Return of a model's replies to such questions: how many, tokens together, mean seconds.

        Replies that came by a batch or a file have no seconds; 0 where none has.
        """
        count, *tokens, seconds = self._database.row(
            "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cached_tokens),"
            " avg(nullif(seconds, 0)) FROM replies"
            " WHERE lm = ? AND settings = ? AND output_tokens > 0",
            (lm, _as_text(settings)),
        )
        return count, Usage(*(number or 0 for number in tokens)), seconds or 0.0


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has not been collected: how many requests, when it was submitted."""

    id: str
    requests: int
    submitted: str


class SentBatches:
    """The batches and files of requests that were sent from an index."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def record(
        self, batch: str, sent: Mapping[str, tuple[str, int]], provenance: Provenance
    ) -> None:
        """Keep what a batch holds: {name of the request there: (key, number of its document)}."""
        with self._database.writing(searchable=False) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, NULL)",
                (batch, json.dumps(asdict(provenance)), len(sent), _now()),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
                [(name, key, number, batch) for name, (key, number) in sent.items()],
            )

    def record_file(self, sent: Mapping[str, tuple[str, int]], provenance: Provenance) -> None:
        """Keep what was written to a file; nothing of it counts as being out."""
        content = json.dumps(asdict(provenance), sort_keys=True).encode("utf-8", "surrogatepass")
        name = _FILE + hashlib.blake2b(content, digest_size=8).hexdigest()
        self.record(name, sent, provenance)

    def open_for(self, lm: str) -> list[OpenBatch]:
        """Return the batches of a model that have not been collected, the oldest first."""
        rows = self._database.rows(
            "SELECT id, requests, submitted, provenance FROM batches"
            " WHERE collected IS NULL AND id NOT LIKE ? ORDER BY submitted, id",
            (_FILE + "%",),
        )
        return [OpenBatch(*row) for *row, source in rows if json.loads(source)["lm"] == lm]

    def names_in(self, batch: str) -> list[str]:
        """Return the names of the requests in a batch."""
        return self._database.column("SELECT name FROM sent WHERE batch = ?", (batch,))

    def requests(self, names: Iterable[str]) -> dict[str, tuple[str, int, Provenance]]:
        """Return (key, document number, provenance) of those names that were sent from here."""
        rows = self._database.rows(
            "SELECT name, key, number, provenance FROM sent"
            " JOIN batches ON batches.id = sent.batch"
            " WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps(list(names)),),
        )
        return {
            name: (key, number, Provenance(**json.loads(source)))
            for name, key, number, source in rows
        }

    def outstanding(self, keys: Iterable[str]) -> set[str]:
        """Return those keys whose request is out in a batch that has not been collected."""
        out = self._database.column(
            "SELECT key FROM sent JOIN batches ON batches.id = sent.batch"
            " WHERE key IN (SELECT value FROM json_each(?))"
            " AND collected IS NULL AND batch NOT LIKE ?",
            (json.dumps(list(keys)), _FILE + "%"),
        )
        return set(out)

    def collected(self, batch: str) -> None:
        """Note that all that came of a batch is kept."""
        with self._database.writing(searchable=False) as connection:
            connection.execute("UPDATE batches SET collected = ? WHERE id = ?", (_now(), batch))

    def mark_sending(self, lm: str | None) -> None:
        """Note that a batch is being sent, or (None) that it has arrived."""
        self._settings.put(sending={"lm": lm, "since": _now()} if lm else None)

    def check_no_lost_batch(self, lm: str, remedy: str) -> None:
        """Refuse to go on where a batch for a model is on its way that nobody saw arrive."""
        sending = self._settings.get("sending")
        if sending and sending["lm"] == lm:
            raise BadInput(
                f"the program ended while it submitted a batch ({sending['since']}), which may be "
                "running: look at the service's list. If it is there, download its results when it "
                f"has ended, and give --replies-in FILE. If not: {remedy}"
            )


def _as_text(saved: dict[str, Any]) -> str:
    return json.dumps(saved, ensure_ascii=False, sort_keys=True)
