"""The query sets of a catalog: one list of queries for each document that has any."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.errors import BadInput
from strop.io.files import checked_string
from strop.methods import check_count
from strop.storage.database import Database, reporting_damage
from strop.storage.intake import check_set_name
from strop.storage.ledger import DERIVED, VectorLedger
from strop.storage.settings import Settings
from strop.storage.vectors import file_name, type_for
from strop.storage.waiting import WaitingList

SOURCES = ("sentences", "file", "lm", "augmented")


@dataclass(frozen=True)
class QuerySet:
    """A named set of query lists, one list for each document that has any.

    ``settings["source"]`` is ``sentences`` (derived from the text), ``file`` (imported), ``lm``
    (written by a language model) or ``augmented`` (one text per document: its own with the
    queries of ``settings["of"]`` appended). ``settings["kind"]`` says whether its texts are
    embedded as queries or documents.
    """

    set_id: int
    name: str
    settings: dict[str, Any]

    @property
    def derived(self) -> bool:
        """Whether its lists can be computed from the documents at any time."""
        return self.settings["source"] in DERIVED

    @property
    def augmented(self) -> bool:
        """Whether its texts are documents with the queries of another set appended."""
        return bool(self.settings["source"] == "augmented")

    @property
    def negative(self) -> bool:
        """Whether its queries are relevant to a document's references and not to the document."""
        if self.settings["source"] == "lm":
            return bool(self.settings["settings"]["prompt"]["style"] == "negative")
        return self.name == "negative"


def augmented_set(style: str) -> str:
    """Return the name of the set of texts augmented with the queries of another."""
    return f"augmented:{style}"


def _renamed(names: Sequence[str], old: str, new: str) -> list[str]:
    return [new if name == old else name for name in names]


class QuerySets:
    """The query sets of a catalog and their lists."""

    def __init__(
        self, database: Database, settings: Settings, vectors: VectorLedger, waiting: WaitingList
    ) -> None:
        self._database, self._settings = database, settings
        self._vectors, self._waiting = vectors, waiting

    def all(self) -> dict[str, QuerySet]:
        """Return the query sets by name, in the order they were created."""
        return dict(self._settings.once_per_version("sets", self._read))

    def _read(self) -> dict[str, QuerySet]:
        rows = self._database.rows("SELECT set_id, name, settings FROM sets ORDER BY set_id")
        with reporting_damage(self._database.path, "query sets"):
            sets = {name: QuerySet(id_, name, json.loads(text)) for id_, name, text in rows}
            for name, set_ in sets.items():
                settings = set_.settings
                valid = settings["source"] in SOURCES and settings["kind"] in ("query", "document")
                valid &= not set_.augmented or isinstance(settings["of"], str)
                valid &= settings["source"] != "sentences" or isinstance(settings["n"], int)
                if not valid or not isinstance(name, str):
                    raise ValueError(f"{name!r:.40} with {settings!r:.80}")
                set_.negative  # noqa: B018 (its settings must be there)
        return sets

    def ensure(self, name: str, settings: dict[str, Any]) -> QuerySet:
        """Return a set; create it if it is missing; if its settings differ, update them.

        The lists of a derived set are then recomputed.
        """
        stored = self.all().get(name)
        if stored is None or stored.settings != settings:
            with self._database.writing() as connection:
                connection.execute(
                    "INSERT INTO sets (name, settings) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET settings = excluded.settings",
                    (name, json.dumps(settings)),
                )
                set_ = self.all()[name]
                if stored is None:
                    dtype = type_for(self._settings.get("query_vectors"), settings["source"])
                    connection.execute(
                        "INSERT INTO files (set_id, name, dtype) VALUES (?, ?, ?)",
                        (set_.set_id, file_name(set_.set_id, dtype), dtype),
                    )
                elif set_.derived:  # given lists stay: they still fit their text
                    connection.execute(
                        "UPDATE spans SET digest = x'', older = 1 WHERE set_id = ?", (set_.set_id,)
                    )
                if set_.derived:
                    connection.execute(
                        "INSERT OR IGNORE INTO waiting (set_id, number)"
                        " SELECT ?, number FROM documents",
                        (set_.set_id,),
                    )
        return self.all()[name]

    def named(self, name: str) -> QuerySet:
        """Return a set; refuse a name that no set has."""
        sets = self.all()
        if name not in sets:
            folder = self._database.path.parent
            names = ", ".join(map(repr, sets)) or "none"
            raise BadInput(f"{folder} has no query set {name!r} (it has: {names})")
        return sets[name]

    def drop(self, name: str) -> list[str]:
        """Drop a set and the texts augmented with it, all or nothing; return their files' names.

        The caller deletes the files. Tuned settings for a mix with this set are dropped too.
        """
        with self._database.writing() as connection:
            dropped = self._with_augmented(self.named(name))
            files = self._vectors.files()
            for set_ in dropped:
                self._log_all_changed(set_)
                for table in ("queries", "spans", "waiting", "checksums", "files", "sets"):
                    connection.execute(f"DELETE FROM {table} WHERE set_id = ?", (set_.set_id,))
            tuned = self._settings.get("tuned")
            if tuned is not None and name in tuned["for_sets"]:
                self._settings.put(tuned=None)
        return [files[set_.set_id].name for set_ in dropped]

    def rename(self, old: str, new: str) -> None:
        """Give a set another name, including its augmented texts and tuned settings."""
        check_set_name(new)
        with self._database.writing() as connection:
            set_ = self.named(old)
            if set_.derived:
                raise BadInput(f"the set {old!r} cannot be renamed: strop makes it under this name")
            if new in self.all():
                folder = self._database.path.parent
                raise BadInput(f"{folder} has a query set {new!r}: drop it or choose another name")
            for renamed in self._with_augmented(set_):
                name, settings = new, renamed.settings
                if renamed is not set_:
                    name, settings = augmented_set(new), {**settings, "of": new}
                connection.execute(
                    "UPDATE sets SET name = ?, settings = ? WHERE set_id = ?",
                    (name, json.dumps(settings), renamed.set_id),
                )
                self._log_all_changed(renamed)
            if tuned := self._settings.get("tuned"):
                mix = tuned["method"]["sets"]
                method = {**tuned["method"], "sets": mix and _renamed(mix, old, new)}
                for_sets = _renamed(tuned["for_sets"], old, new)
                self._settings.put(tuned={**tuned, "method": method, "for_sets": for_sets})

    def _with_augmented(self, set_: QuerySet) -> list[QuerySet]:
        """Return a set and the set of texts augmented with it, if there is one."""
        sets = self.all().values()
        return [set_, *(other for other in sets if other.settings.get("of") == set_.name)]

    def _log_all_changed(self, set_: QuerySet) -> None:
        """Log all lists of a set as changed: snapshots and codes refer to sets by name."""
        numbers = self._database.column("SELECT number FROM spans WHERE set_id = ?", [set_.set_id])
        self._vectors.log(numbers)
        self._settings.put_sidecar("candidates", None)

    def ensure_sentences(self, n: int) -> QuerySet:
        """Return the set of each document's title and sentences, at most n, as ``ensure`` does."""
        # Sentences are parts of documents: models with two prompts embed them as documents.
        settings = {"source": "sentences", "kind": "document", "n": check_count("n", n)}
        return self.ensure("sentences", settings)

    def import_lists(
        self,
        name: str,
        lists: Mapping[str, Sequence[str]] | Iterable[tuple[str, str, Sequence[str]]],
        n: int | None = None,
    ) -> tuple[int, int, list[str]]:
        """Store imported lists in the set ``name``, all or nothing; they wait for vectors.

        They are queries by document id, or (place, id, queries). Several lists for one document
        are joined in their order; the first n queries are stored. Returns how many documents and
        queries were stored, and the ids that are not in the index.
        """
        check_set_name(name)
        if n is not None:
            check_count("n", n)
        if isinstance(lists, Mapping):
            lists = [("the given lists", id_, texts) for id_, texts in lists.items()]
        unknown: list[str] = []
        documents, queries = self._pool(self._checked(lists, unknown), n)
        if not documents:
            raise BadInput(
                "none of the ids is a document of this index"
                + (f" (first: {unknown[0]})" if unknown else ": the file has no lists")
            )
        with self._database.writing():  # the set and its lists, or neither
            self._enqueue(self.ensure(name, {"source": "file", "kind": "query"}))
        return documents, queries, unknown

    def _checked(
        self, lists: Iterable[tuple[str, str, Sequence[str]]], unknown: list[str]
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield (number, queries) of lists (place, id, queries); unknown ids go to ``unknown``."""
        for place, id_, texts in lists:
            if isinstance(texts, str):
                raise BadInput(f"{place}: the queries of {id_!r} are one text, not a list")
            queries_of = f"{place}, queries of {id_!r}"
            checked = [checked_string(text, "a query", queries_of, "use text") for text in texts]
            if blank := [at for at, text in enumerate(checked, 1) if not text.strip()]:
                raise BadInput(f"{place}: query {blank[0]} of {id_!r} is blank; remove it")
            row = self._database.row("SELECT number FROM documents WHERE id = ?", (id_,))
            if row is None:
                unknown.append(f"{place}: {id_!r}")
            else:
                yield row[0], checked

    def store_generated(
        self, name: str, settings: dict[str, Any], lists: Iterable[tuple[int, list[str]]]
    ) -> int:
        """Store generated (number, queries) lists in one transaction; they wait for vectors.

        If another generator made the set, its lists for other documents are dropped. Returns how
        many were dropped. Without any list nothing changes, so a failed run loses no set.
        """
        if self._pool(lists) == (0, 0):
            return 0
        with self._database.writing():
            stored = self.all().get(name)
            set_ = self.ensure(name, settings)
            dropped = 0
            if stored is not None and stored.settings != settings:
                dropped = self._drop_others(set_)
            self._enqueue(set_)
        return dropped

    def _pool(
        self, lists: Iterable[tuple[int, list[str]]], n: int | None = None
    ) -> tuple[int, int]:
        """Write (number, queries) lists to a temporary table, for ``_enqueue``.

        Producing the lists may take long, and replies must be stored meanwhile: this table needs
        no lock. Lists of one document are joined; the first n queries count. Returns the number
        of lists and of queries.
        """
        with self._database.reading() as connection:
            connection.execute("DROP TABLE IF EXISTS temp.pooled")
            connection.execute("CREATE TEMP TABLE pooled (number INTEGER PRIMARY KEY, texts TEXT)")
            try:
                for number, texts in lists:
                    earlier = self._database.row(
                        "SELECT texts FROM pooled WHERE number = ?", [number]
                    )
                    joined = (json.loads(earlier[0]) if earlier else []) + texts
                    row = number, json.dumps(joined[:n], ensure_ascii=False)
                    connection.execute("INSERT OR REPLACE INTO pooled VALUES (?, ?)", row)
            except BaseException:
                connection.execute("DROP TABLE temp.pooled")
                raise
            counts: tuple[int, int] = self._database.row(
                "SELECT count(*), coalesce(sum(json_array_length(texts)), 0) FROM pooled"
            )
        return counts

    def _drop_others(self, set_: QuerySet) -> int:
        """Drop the lists of documents that are not pooled; return how many."""
        not_pooled = "set_id = ? AND number NOT IN (SELECT number FROM pooled)"
        numbers = self._database.column(
            f"SELECT number FROM queries WHERE {not_pooled}", (set_.set_id,)
        )
        self.remove_lists(set_.set_id, numbers)
        self._database.execute(f"DELETE FROM waiting WHERE {not_pooled}", (set_.set_id,))
        self._augment_again(set_, numbers)
        return len(numbers)

    def _augment_again(self, set_: QuerySet, numbers: Sequence[int]) -> None:
        """Queue the texts of documents that were augmented with old queries of a set."""
        for other in self.all().values():
            if other.settings.get("of") == set_.name:
                self._waiting.embed_again(other.set_id, numbers)

    def _enqueue(self, set_: QuerySet) -> None:
        """Queue the pooled lists (``_pool``) for embedding, except those already embedded.

        The latter are taken to fit the present text, so they count again if it has changed.
        """
        self._database.execute(
            "DELETE FROM waiting WHERE set_id = ? AND number IN (SELECT number FROM pooled)",
            (set_.set_id,),
        )
        self._database.execute(
            "INSERT INTO waiting (set_id, number, texts, digest)"
            " SELECT ?1, p.number, p.texts, d.digest FROM pooled p"
            " JOIN documents d USING (number) LEFT JOIN queries q ON q.set_id = ?1"
            " AND q.number = p.number WHERE q.texts IS NOT p.texts",
            (set_.set_id,),
        )
        embedded = self._database.column(
            "SELECT number FROM pooled JOIN spans USING (number) WHERE set_id = ?1 AND older"
            " AND number NOT IN (SELECT number FROM waiting WHERE set_id = ?1)",
            (set_.set_id,),
        )
        self._database.execute("DROP TABLE temp.pooled")
        self.mark_current(set_, embedded)

    def mark_current(self, set_: QuerySet, numbers: Sequence[int]) -> None:
        """Within a transaction: take given lists, waiting ones included, as for the present texts.

        Texts augmented with lists that count again wait to be embedded again.
        """
        keys = [(set_.set_id, number) for number in numbers]
        self._database.executemany(
            "UPDATE waiting SET digest ="
            " (SELECT digest FROM documents d WHERE d.number = waiting.number)"
            " WHERE set_id = ? AND number = ?",
            keys,
        )
        sql = (
            "UPDATE spans SET older = 0, digest ="
            " (SELECT digest FROM documents d WHERE d.number = spans.number)"
            " WHERE set_id = ? AND number = ? AND older RETURNING number"
        )
        renewed = [number for key in keys for (number,) in self._database.execute(sql, key)]
        self._vectors.log(renewed)
        self._augment_again(set_, renewed)

    def write(self, set_: QuerySet, lists: Mapping[int, list[str]]) -> None:
        """Within a transaction: store lists by document number; they replace older ones.

        The spans of their vectors are added in the same transaction.
        """
        self._database.executemany(
            "INSERT OR REPLACE INTO queries VALUES (?, ?, ?)",
            [
                (set_.set_id, number, json.dumps(texts, ensure_ascii=False))
                for number, texts in lists.items()
            ],
        )
        self._augment_again(set_, list(lists))

    def remove_lists(self, set_id: int, numbers: Sequence[int]) -> None:
        """Within a transaction: remove documents' lists of a set, or (set 0) their own vectors."""
        self._vectors.unplace(set_id, numbers)
        self._database.executemany(
            "DELETE FROM queries WHERE set_id = ? AND number = ?",
            [(set_id, number) for number in numbers],
        )

    def queries(self, set_: QuerySet, number: int, outdated: bool = False) -> list[str]:
        """Return one document's texts of a set (``queries_of``)."""
        return self.queries_of(set_, [number], outdated).get(number, [])

    def queries_of(
        self, set_: QuerySet, numbers: Sequence[int], outdated: bool = False
    ) -> dict[int, list[str]]:
        """Return documents' embedded texts of a set by number, in the order of their vectors.

        Lists given for an older text of the document are returned only if ``outdated``.
        """
        condition = "" if outdated or set_.derived else " AND NOT older"
        rows = self._database.rows(
            "SELECT number, texts FROM queries JOIN spans USING (set_id, number) WHERE set_id = ?"
            f" AND number IN (SELECT value FROM json_each(?)){condition}",
            (set_.set_id, json.dumps(numbers)),
        )
        with reporting_damage(self._database.path, "queries"):
            return {number: [text + "" for text in json.loads(texts)] for number, texts in rows}

    def lists(self, set_: QuerySet) -> Iterator[tuple[str, list[str]]]:
        """Yield (document id, queries) of a set, in the order the documents were added."""
        rows = self._database.rows(
            "SELECT d.number, d.id FROM queries q JOIN documents d USING (number)"
            " WHERE q.set_id = ? ORDER BY d.number",
            (set_.set_id,),
        )
        for number, id_ in rows:
            if texts := self.queries(set_, number, outdated=True):
                yield id_, texts

    def of_rows(self, numbers: Sequence[int]) -> dict[str, list[str]]:
        """Return the queries of a document, or of its chunks, by set."""
        with self._database.reading():
            lists = {
                name: self.queries_of(set_, numbers, outdated=True)
                for name, set_ in self.all().items()
                if not set_.augmented
            }
        return {
            name: [text for number in numbers for text in texts_of.get(number, [])]
            for name, texts_of in lists.items()
        }

    def forget(self, set_id: int, numbers: Sequence[int]) -> None:
        """Drop documents' vectors of a set, which are damaged; they wait to be recomputed."""
        given = any(set_.set_id == set_id and not set_.derived for set_ in self.all().values())
        with self._database.writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO waiting (set_id, number, texts, digest)"
                " SELECT s.set_id, s.number, q.texts, s.digest"
                " FROM spans s JOIN queries q USING (set_id, number)"
                " WHERE s.set_id = ? AND s.number = ?"
                if given
                else "INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)",
                [(set_id, number) for number in numbers],
            )
            self.remove_lists(set_id, numbers)
