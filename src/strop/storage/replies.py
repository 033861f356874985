"""Prompts to language models and their replies: no reply is paid for twice.

A reply's key is a hash of everything that led to it: the model and its options, the instructions,
the document, the references, the limits. Any change gives another key, so a stored reply is used
only for its own prompt. Replies stay when their query set or document is removed.

While calls are made, disk space is reserved for replies that are paid for already. A request that
was sent in a batch is not sent again until the batch has been collected.
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
"""Disk space that is reserved while calls are made."""
NEEDED_BYTES = 4 << 20
"""With less free space than this, besides the reserve, no more calls are made."""
_FILE = "file:"
"""Prefix of the ids of requests that were written to files; there is one id per provenance."""


@dataclass(frozen=True)
class Provenance:
    """The origin of a reply, which is stored with it."""

    lm: str
    options: dict[str, Any]
    settings: dict[str, Any]


def _now() -> str:
    """Return the time as the catalog stores it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def reply_key(lm: str, options: dict[str, Any], parts: list[Any]) -> str:
    """Return the key of a prompt: a hash of the model, its options and the prompt's parts."""
    content = json.dumps([lm, options, parts], ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class Replies:
    """The replies and failures in a catalog, by the key of their prompt."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._folder = database.path.parent
        self._reserves: list[IO[bytes]] = []

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` that have a reply."""
        sql = "SELECT key FROM replies WHERE key IN (SELECT value FROM json_each(?))"
        return set(self._database.column(sql, (json.dumps(list(keys)),)))

    def failed(self, keys: Iterable[str]) -> dict[str, bool]:
        """Return those of ``keys`` that failed, and whether the failure is final."""
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
        """Store replies and failures with the number of their document, in one commit.

        On a full disk the reserve, if there is one, is freed for them; then the error is raised.
        """
        outcomes = list(replies), list(failures)
        try:
            self._save(*outcomes, provenance)
        except DiskFull:
            if self.has_reserve:
                while self._reserves:
                    self._reserves.pop().close()
                self._save(*outcomes, provenance)
            raise

    @property
    def has_reserve(self) -> bool:
        """Whether disk space is reserved now."""
        return bool(self._reserves)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve disk space for replies while calls are made."""
        with self._reserve() as reserve:
            self._reserves.append(reserve)
            try:
                yield
            finally:
                if reserve in self._reserves:  # else ``save`` has used it
                    self._reserves.remove(reserve)

    def _reserve(self) -> IO[bytes]:
        """Return a file that occupies disk space; closing it frees the space for replies.

        It has no name, so it disappears if the process is killed.
        """
        try:
            reserve = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (the caller closes it)
            try:
                reserve.write(os.urandom(RESERVE_BYTES))  # a file system may compress zeros away
                reserve.flush()
                os.fsync(reserve.fileno())
            except BaseException:
                reserve.close()
                raise
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return reserve

    def room_problem(self) -> DiskFull | None:
        """Return the reason why no more calls should be made, None if there is enough space."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:  # then writing will report what is wrong
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
                [
                    (failure.key, number, failure.error, failure.final, created)
                    for failure, number in failures
                ],
            )

    def overview(self, samples: int) -> dict[str, Any]:
        """Return totals of replies by model, failures by message, and the newest replies."""
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
        """Return the number, total tokens and mean seconds of a model's replies with such settings.

        Replies from a batch or a file have no seconds; if no reply has, the mean is 0.
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
    """A batch that has not been collected: the number of requests, and when it was submitted."""

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
        """Record the requests of a batch: {name of the request: (key, number of its document)}."""
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
        """Record requests that were written to a file; they do not count as outstanding."""
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
        """Return those keys whose request was sent in a batch that has not been collected."""
        keys_in_batches = self._database.column(
            "SELECT key FROM sent JOIN batches ON batches.id = sent.batch"
            " WHERE key IN (SELECT value FROM json_each(?))"
            " AND collected IS NULL AND batch NOT LIKE ?",
            (json.dumps(list(keys)), _FILE + "%"),
        )
        return set(keys_in_batches)

    def collected(self, batch: str) -> None:
        """Record that all results of a batch are stored."""
        with self._database.writing(searchable=False) as connection:
            connection.execute("UPDATE batches SET collected = ? WHERE id = ?", (_now(), batch))

    def mark_sending(self, lm: str | None) -> None:
        """Record that a batch is being sent, or (None) that it has arrived."""
        self._settings.put(sending={"lm": lm, "since": _now()} if lm else None)

    def check_no_lost_batch(self, lm: str, remedy: str) -> None:
        """Refuse to continue if it is unknown whether a batch for this model has arrived."""
        sending = self._settings.get("sending")
        if sending and sending["lm"] == lm:
            raise BadInput(
                f"the program ended while it submitted a batch ({sending['since']}), which may be "
                "running: look at the service's list. If it is there, download its results when it "
                f"has ended, and give --replies-in FILE. If not: {remedy}"
            )


def _as_text(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
