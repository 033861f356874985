"""The index folder: documents, their vectors and query sets; sharpening, search, explanation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.embed import Embedder
from strop.errors import BadInput
from strop.expand.methods import QueryMethod
from strop.expand.refining import Candidate, Limits, Refined, Resources
from strop.generate.generation import Generation, IndexSteps
from strop.generate.plan import GenerationSettings
from strop.generate.triplets import Triplet, triplets
from strop.io.sentences import MOST
from strop.lm import LM
from strop.lm import load as load_lm
from strop.lm.prices import Price
from strop.methods import Method, check_count
from strop.search.contrast import contrast_rate
from strop.search.explain import Explanation
from strop.search.leaks import drop_leaks
from strop.search.searcher import Searcher, as_queries
from strop.storage.intake import check_style, placed
from strop.storage.query_sets import expanded_set
from strop.storage.references import Selected
from strop.storage.vectors import DEFAULT_STORED, check_stored
from strop.storage.workspace import Workspace
from strop.types import Document, Hits, Progress, Vectors

if TYPE_CHECKING:
    from strop.references.selection import ReferenceSettings


@dataclass(frozen=True)
class Changes:
    """What adding documents did."""

    new: int
    changed: int
    unchanged: int
    empty: int


class Index:
    """Documents with vectors, sharpened by query sets, in one folder.

    ``Index.create(path)`` makes one, ``Index.open(path)`` opens one. Any number of processes
    may read while one writes; a second writer gets ``IndexBusy``. Searches see each change as
    soon as it is committed.
    """

    def __init__(self, workspace: Workspace, searcher: Searcher | None = None) -> None:
        """Use ``create`` or ``open`` instead."""
        self._workspace = workspace
        self._catalog = workspace.catalog
        self.searcher = searcher or Searcher(workspace.catalog, workspace.path, workspace.dim)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] = "wordllama",
        query_vectors: str = DEFAULT_STORED,
        **options: Any,
    ) -> Index:
        """Make an empty index in a new folder; ``options`` are the embedder's.

        ``query_vectors`` says how the vectors of its query sets are stored: ``int8`` or
        ``float32``. The documents' own are float32.
        """
        return cls(Workspace.create(path, embedder, query_vectors, **options))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] | None = None,
        **options: Any,
    ) -> Index:
        """Open an index. Its embedder is loaded when first needed, unless one is given."""
        return cls(Workspace.open(path, embedder, **options))

    def close(self) -> None:
        """Close the catalog's connections and release the vectors."""
        self._workspace.close()
        self.searcher.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._workspace.path

    @property
    def dim(self) -> int:
        """The length of every vector."""
        return self._workspace.dim

    @property
    def embedder(self) -> Embedder:
        """The embedder the index was made with."""
        return self._workspace.embedder

    # -- documents ------------------------------------------------------------------------

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any] | tuple[Document, str]],
        progress: Progress | None = None,
    ) -> Changes:
        """Add documents; one whose id is known replaces the old one if its text differs.

        All are stored or, on bad input, none. Then vectors are made for them and for every
        query set derived from the text. A document may come with the place it was read from,
        for error messages.
        """
        with self._workspace.writing():
            changes = Changes(*self._catalog.documents.add(placed(documents)))
            self._make_vectors(progress)
        return changes

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents and all that hangs on them; with an unknown id, none."""
        with self._workspace.writing():
            self._catalog.documents.remove(ids)
            self.searcher.update_codes()

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many went."""
        if isinstance(ids, str):
            raise BadInput(f"keep_only takes a list of ids, not {ids!r}: write [{ids!r}]")
        kept = set(ids)
        with self._workspace.writing():
            gone = [id_ for id_ in self.ids() if id_ not in kept]
            if gone:
                self._catalog.documents.remove(gone)
                self.searcher.update_codes()
        return len(gone)

    def get(self, id_: str) -> Document:
        """Return a document."""
        with self._catalog.reading():
            return self._catalog.documents.get(self._catalog.documents.number_of(id_))

    def ids(self) -> list[str]:
        """Return the ids of all documents, in the order they came."""
        return self._catalog.documents.ids()

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are no document here."""
        return self._catalog.documents.unknown(ids)

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set."""
        with self._catalog.reading():
            number = self._catalog.documents.number_of(id_)
            return {
                set_.name: self._catalog.sets.queries(set_, number)
                for set_ in self._catalog.sets.all().values()
                if set_.settings["source"] != "expanded"
            }

    def query_lists(self, name: str) -> Iterator[tuple[str, list[str]]]:
        """Yield (document id, queries) of a set, in the order the documents came."""
        set_ = self.searcher.require(name)
        for number, document, _ in self._catalog.documents.all():
            if texts := self._catalog.sets.queries(set_, number):
                yield document.id, texts

    def __len__(self) -> int:
        """The number of documents."""
        return self._catalog.documents.count()

    # -- sharpening -----------------------------------------------------------------------

    def sharpen(
        self, source: str = "sentences", *, n: int = MOST, progress: Progress | None = None
    ) -> None:
        """Make the query set ``sentences``: each document's title and sentences, at most n.

        Documents added later get theirs by themselves.
        """
        if source != "sentences":
            raise BadInput(f"no query source {source!r}: use 'sentences', or import_queries()")
        check_count("n", n)
        # Sentences are pieces of documents, so models that tell the two apart embed them so.
        settings = {"source": "sentences", "kind": "document", "n": n}
        with self._workspace.writing():
            self._catalog.sets.ensure("sentences", settings)
            self._make_vectors(progress)

    def import_queries(
        self,
        lists: Mapping[str, Sequence[str]] | Iterable[tuple[str, str, Sequence[str]]],
        style: str,
        *,
        n: int | None = None,
        progress: Progress | None = None,
    ) -> tuple[int, int, list[str]]:
        """Take queries written elsewhere into the set ``style``; a new list replaces the old.

        ``lists`` maps document ids to queries, or yields (place, id, queries). Returns how many
        lists and queries were taken, and the ids that are not in the index (left out).
        """
        check_style(style)
        if n is not None:
            check_count("n", n)
        if isinstance(lists, Mapping):
            lists = [("the given lists", id_, texts) for id_, texts in lists.items()]
        with self._workspace.writing():
            with self._catalog.writing():  # the set and its lists, or neither
                set_ = self._catalog.sets.ensure(style, {"source": "file", "kind": "query"})
                taken = self._catalog.sets.store(set_, lists, n)
            self._make_vectors(progress)
        return taken

    def generation(
        self,
        lm: str | LM | Callable[[str], str],
        settings: GenerationSettings | None = None,
        *,
        into: str | None = None,
        limit: int | None = None,
        price: Price | None = None,
        retry: bool = False,
        replace: bool = False,
        **options: Any,
    ) -> Generation:
        """Return the work of a language model that writes queries: ``estimate()``, ``run()`` …

        They go to the set ``into``, by default that of the style. ``limit`` plans for the first
        documents only, ``retry`` for what failed before. A set that came from a file is refused
        unless ``replace`` is given. ``options`` are the model's.
        """
        settings = settings or GenerationSettings()
        check_style(into or settings.prompt.style)
        steps = IndexSteps(self._choose_references, self._make_vectors, self.contrast_rate)
        return Generation(
            self._workspace, steps, load_lm(lm, **options), settings, into=into, limit=limit,
            price=price, retry=retry, replace=replace,
        )  # fmt: skip

    def triplets(self, name: str, negatives: int = 1) -> Iterator[Triplet]:
        """Yield (query, positive, negative) texts of a query set, for contrastive training."""
        set_ = self.searcher.require(name)
        if not self._catalog.references.counts():
            raise BadInput(f"{self.path} has no references yet: strop references {self.path}")
        return triplets(self._catalog, set_, negatives)

    def contrast_rate(self, name: str) -> float | None:
        """Return the share of a set's queries nearer their document than all its references.

        None if no document has references. It is a measure, not a goal: the queries that an
        embedder places wrongly are those it can learn from.
        """
        with self._catalog.reading():
            set_ = self.searcher.require(name)
            view = self.searcher.views.of(Method("contrast", sets=(name,)))
            return contrast_rate(self._catalog, *view, set_.negative)

    def expand(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of a set appended (doc2query, docexp)."""
        self.searcher.require(style)
        settings = {"source": "expanded", "kind": "document", "of": style}
        known = self._catalog.sets.all().get(expanded_set(style))
        if known is not None and not self._catalog.vectors.waiting_count(known.set_id):
            return  # readers need not wait for a writer
        with self._workspace.writing():
            self._catalog.sets.ensure(expanded_set(style), settings)
            self._workspace.pipeline.run(progress, expanded=style)

    def _make_vectors(self, progress: Progress | None) -> None:
        """Make the vectors that are missing, and bring up to date what depends on them."""
        self._workspace.pipeline.run(progress)
        self.searcher.update_codes()

    def finish(self, progress: Progress | None = None) -> None:
        """Go on with work that was interrupted; does nothing where none was."""
        with self._workspace.writing():
            self._make_vectors(progress)

    # -- references -----------------------------------------------------------------------

    def select_references(
        self,
        settings: ReferenceSettings | None = None,
        *,
        method: str = "auto",
        progress: Progress | None = None,
    ) -> int:
        """Choose each document's contrastive references where missing or out of date.

        Without ``settings`` those of the last time count, at first the paper's. ``method`` finds
        neighbours: ``exact``, ``cells`` (approximate) or ``auto``, by size.
        Returns for how many documents they were chosen.
        """
        from strop.references.updates import update_references  # compiled: a search needs none

        with self._workspace.writing():
            with self._catalog.reading():
                snapshot = self.searcher.views.snapshot()
            return update_references(
                self._catalog, snapshot.numbers, snapshot.documents,
                settings or self._reference_settings(), method=method, progress=progress,
            )  # fmt: skip

    def _choose_references(self, progress: Progress | None) -> int:
        return self.select_references(progress=progress)

    def _reference_settings(self) -> ReferenceSettings:
        from strop.references.selection import ReferenceSettings

        saved = self._catalog.references.settings()
        names = {field.name for field in fields(ReferenceSettings)}
        return ReferenceSettings(**{key: value for key, value in saved.items() if key in names})

    def references_of(self, id_: str) -> Selected | None:
        """Return a document's references, None if none were chosen for it."""
        return self._catalog.references.of(self._catalog.documents.number_of(id_))

    # -- searching ------------------------------------------------------------------------

    def search(
        self,
        queries: str | Iterable[str] | Vectors,
        k: int = 10,
        method: str | Method | None = None,
        *,
        alpha: float | None = None,
        temperature: float | None = None,
        sets: Sequence[str] | None = None,
        n: int | None = None,
        expand: QueryMethod | None = None,
        vectors: Vectors | None = None,
        exact: bool = False,
    ) -> Hits:
        """Return the best k documents for each query, texts or vectors (n, dim).

        ``method`` is a name of ``METHODS`` with optional settings (``"sharp:alpha=2"``). Without
        one it is ``sharp`` where the index has query sets and ``trad`` where it has none. Large
        indexes score candidates only, unless ``exact``.
        ``expand`` has a language model refine the queries first, such as ``HyDE("openai:…")``.
        With texts, ``vectors`` may be what stands for them, such as ``embed_queries`` made before.
        Vectors alone have no words: what ``words`` adds to a score is 0 then.
        """
        k = check_count("k", k)
        queries = as_queries(queries)
        chosen = self.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        if expand is not None:
            refined = self.refine(queries, expand)
            if refined.failed:
                warnings.warn(refined.failure_message(), stacklevel=2)
            vectors = refined.vectors
        texts = self._texts(queries, chosen, vectors)
        if chosen.bm25 == "only":
            query_vectors = np.zeros((len(texts), self.dim), np.float32)
        else:
            query_vectors = self._query_vectors(queries if vectors is None else vectors)
        ids, scores = self.searcher.search(query_vectors, texts, k, chosen, exact)
        return Hits(np.array(ids, dtype=object).reshape(scores.shape), scores)

    def recall(self, n: int = 100, k: int = 10) -> dict[str, Any]:
        """Compare the best k of searches with the exact ones (``Searcher.recall``)."""
        return self.searcher.recall(check_count("n", n), check_count("k", k))

    def explain(
        self,
        query: str | Vectors,
        id_: str,
        method: str | Method | None = None,
        *,
        alpha: float | None = None,
        temperature: float | None = None,
        sets: Sequence[str] | None = None,
        n: int | None = None,
        vectors: Vectors | None = None,
    ) -> Explanation:
        """Say how much each stored query of a document moved its score for ``query``.

        With a text, ``vectors`` (1, dim) may be what stands for it.
        """
        chosen = self.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        text = query if isinstance(query, str) else ""
        if vectors is None:
            vectors = np.atleast_2d(query) if isinstance(query, np.ndarray) else None
        given = as_queries(query if vectors is None else vectors)
        return self.searcher.explain(self._query_vectors(given)[0], text, id_, chosen)

    def method(
        self,
        method: str | Method | None = None,
        *,
        alpha: float | None = None,
        temperature: float | None = None,
        sets: Sequence[str] | None = None,
        n: int | None = None,
    ) -> Method:
        """Return a method for this index; the other values override its defaults.

        The defaults of ``sharp`` are those ``strop tune`` chose for this index, if it did.
        """
        return self.searcher.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)

    def keep_tuned(self, choice: Mapping[str, Any] | None) -> None:
        """Use other defaults for ``sharp`` from now on (``Choice.to_json``); None: the usual."""
        tuned = None if choice is None else {**choice, "for_sets": self.query_sets()}
        with self._workspace.writing():
            self._catalog.settings.put(tuned=tuned)

    def sample_queries(
        self, style: str, most: int, seed: int = 0
    ) -> tuple[list[str], list[str], Vectors]:
        """Return stored queries of a set, drawn at random: whose they are, texts and vectors."""
        return self.searcher.sample_queries(style, most, seed)

    def sample_lists(self, style: str, most: int, seed: int = 0) -> tuple[list[list[str]], Vectors]:
        """Return the stored queries of documents drawn at random, at most ``most`` in all.

        Texts by document, and the vectors (n, dim) of all of them in the same order.
        """
        return self.searcher.sample_lists(style, most, seed)

    def embed_queries(self, queries: str | Sequence[str]) -> Vectors:
        """Embed queries as users' queries; ``search`` takes the result (n, dim) in their place."""
        return self._workspace.pipeline.embed(
            [queries] if isinstance(queries, str) else list(queries), "query"
        )

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts as documents are embedded (n, dim), without adding them."""
        return self._workspace.pipeline.embed(list(texts), "document")

    def refine(
        self,
        queries: str | Sequence[str] | Vectors,
        expand: QueryMethod,
        *,
        leave_out: Sequence[str] | None = None,
        budget: float | None = None,
        price: Price | None = None,
        progress: Progress | None = None,
    ) -> Refined:
        """Have a language model refine queries; ``search`` takes the vectors in their place.

        Replies are kept in the index, which is possible while another process writes to it.
        ``leave_out`` has for each query the id of a document that its first pass must not see.
        Nothing more is asked before ``budget`` (USD) could be passed.
        """
        if not isinstance(expand, QueryMethod):
            raise BadInput(
                "expand takes a query method with its model, such as HyDE('openai:…'), not"
                f" {expand!r}"
            )
        resources = Resources(
            self._catalog, self.embed_queries, self.embed_documents, self.candidates
        )
        return expand.refine(queries, resources, Limits(leave_out, budget, price), progress)

    def candidates(
        self, queries: Sequence[str], vectors: Vectors, method: str | Method | None, k: int
    ) -> list[list[Candidate]]:
        """Return the best k documents for each query, with their texts and their own vectors.

        ``vectors`` (n, dim) are those of the queries. The documents are those of ``search``.
        """
        documents = self._catalog.documents
        with self._catalog.reading():
            hits = self.search(queries, k, method, vectors=vectors)

            def of(id_: str) -> Candidate:
                text = documents.get(documents.number_of(id_)).content
                return Candidate(id_, text, self.searcher.vector_of(id_))

            return [[of(id_) for id_ in ids] for ids in hits.ids.tolist()]

    def _query_vectors(self, queries: list[str] | Vectors) -> Vectors:
        if isinstance(queries, np.ndarray):
            return self.searcher.query_vectors(queries)
        return self.embed_queries(queries)

    @staticmethod
    def _texts(queries: list[str] | Vectors, method: Method, vectors: Vectors | None) -> list[str]:
        """Return the texts of the queries; none if they are vectors."""
        if isinstance(queries, np.ndarray):
            if method.bm25 != "no":
                raise BadInput(f"{method.name} compares words: give the queries' texts")
            if vectors is not None:
                raise BadInput("give vectors once: either as the queries, or beside their texts")
            return []
        if vectors is not None and len(vectors) != len(queries):
            raise BadInput(f"{len(vectors):,} vectors cannot stand for {len(queries):,} queries")
        return queries

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all but negative ones."""
        return self.searcher.views.query_sets()

    def without_leaks(self, query_vectors: Vectors, gate: float) -> tuple[Index, dict[str, int]]:
        """Return this index without generated queries close to a test query.

        Left out is every stored query whose cosine to any of ``query_vectors`` (n, dim) is ``gate``
        or more; also returns how many of each set. Nothing in the index changes.
        """
        with self._catalog.reading():
            narrowed, removed = drop_leaks(
                self._catalog, self.searcher.views.snapshot(), query_vectors, gate,
                self._workspace.pipeline.embed,
            )  # fmt: skip
        left_out = {
            name: sum(int(which.sum()) for which in lists.values())
            for name, lists in removed.items()
        }
        return Index(self._workspace, self.searcher.narrowed(narrowed, removed)), left_out

    # -- looking after it -----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        tuned = self._catalog.settings.get("tuned")
        in_use = tuned and {**tuned, "in_use": self.searcher.tuned() is not None}
        return {**self._workspace.info(), "tuned": in_use}

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Read everything and return what is wrong; with ``repair``, make lost vectors anew."""
        if not repair:
            return self._workspace.check(progress)
        with self._workspace.writing():
            problems = self._workspace.repair(progress)
            self.searcher.update_codes()
        return problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> int:
        """Free the space of vectors and texts that nothing uses; return how many bytes.

        With ``query_vectors`` the index stores its vectors so from now on (as in ``create``),
        those it has included; digits they have lost do not come back. Searches go on meanwhile,
        also in other processes.
        """
        if query_vectors is not None:
            check_stored(query_vectors)
        with self._workspace.writing():
            before = self._workspace.sizes()["total"]
            self._workspace.compact(progress, query_vectors)
            self.searcher.update_codes()
            self._workspace.shrink()
        return int(before - self._workspace.sizes()["total"])

    def delete(self) -> None:
        """Close the index and delete its folder."""
        self._workspace.delete()
        self.close()

    def trust(self) -> list[str]:
        """Take the embedder that a stranger's index names as your own choice, and remember that.

        Returns what this covers: code it may run, folders it may read, addresses it may use.
        """
        return self._workspace.trust()
