"""Index: the facade. It joins the folder (storage), references, generation, search, expansion.

Each method calls the package that does the work. There is no SQL and no arithmetic here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.embed import Embedder
from strop.errors import BadInput
from strop.filters import read_filter
from strop.io.sentences import MOST
from strop.methods import Method, check_count
from strop.references.settings import ReferenceSettings
from strop.search.explain import Explanation
from strop.search.queries import as_queries, check_fields, text_and_vector, texts_and_vectors
from strop.search.reranking import RERANKED, Reranker, reranked
from strop.search.searcher import Searcher
from strop.storage.intake import EmbedderSpec, placed
from strop.storage.references import SelectedReferences
from strop.storage.sizes import SetSize, set_sizes, sizes
from strop.storage.vectors import DEFAULT_STORED
from strop.storage.workspace import Workspace, index_folder
from strop.types import HIT_FIELDS, Changes, Chunk, Document, Hits, Progress, Vectors

if TYPE_CHECKING:  # a search needs no language model
    from strop.engines.publish import Publication
    from strop.expand.methods import QueryMethod
    from strop.expand.refining import Refined
    from strop.generate import Generation, GenerationSettings
    from strop.generate.triplets import Triplet
    from strop.lm import LM


class Index:
    """Documents with vectors, sharpened by query sets, in one folder.

    ``Index.create(path)`` creates an index, ``Index.open(path)`` opens one. Many processes can read
    while one writes; a second writer gets ``IndexBusy``. Searches see each commit immediately.
    ``catalog`` is read-only.
    """

    def __init__(self, workspace: Workspace, searcher: Searcher | None = None) -> None:
        """Use ``create`` or ``open`` instead."""
        self._workspace, self.catalog = workspace, workspace.catalog
        self.path, self.dim = workspace.path, workspace.dim
        self.searcher = searcher or Searcher(self.catalog)
        self.score_inputs = self.searcher.score_inputs

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: EmbedderSpec = "wordllama",
        query_vectors: str = DEFAULT_STORED,
        language: str | None = None,
        chunking: str | None = "auto",
        **options: Any,
    ) -> Index:
        """Create an empty index in a new folder; ``options`` are passed to the embedder.

        ``query_vectors``: how vectors of query sets are stored, ``int8`` or ``float32``.
        ``language``, such as ``german``, is used for stemming; by default it is detected.
        ``chunking``: ``"200:40"`` splits into chunks of at most 200 tokens that share up to 40;
        None never splits; ``auto`` decides by the first documents' length, and warns if it splits.
        """
        given = index_folder(path), embedder, options, query_vectors, language, chunking
        return cls(Workspace.create(*given))

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], /, embedder: EmbedderSpec | None = None, **options: Any
    ) -> Index:
        """Open an index. Its embedder is loaded when first needed, unless one is given.

        ``wait``: seconds to wait if another process writes; other ``options`` go to the embedder.
        """
        return cls(Workspace.open(index_folder(path), embedder, options))

    def close(self) -> None:
        """Close the catalog's connections and release the vectors."""
        self._workspace.close()
        self.searcher.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder that the index was created with."""
        return self._workspace.embedder

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any] | tuple[Document, str]],
        progress: Progress | None = None,
        keep_queries: bool = False,
    ) -> Changes:
        """Add documents; one with a known id replaces the old one if it differs.

        All are stored or, on bad input, none. In a pair (document, place), place names file and
        line for error messages. Queries of a changed text are not used, unless ``keep_queries``.
        """
        with self._workspace.writing():
            changes = self._workspace.add(placed(documents), keep_queries)
            self._embed_new(progress)
        return changes

    def sync(self, folder: str | Path, *, remove: bool = True, **options: Any) -> Changes:
        """Add new and changed files of a folder, remove documents whose files were deleted.

        Other documents stay. ``options``: ``include``, ``exclude`` (patterns such as ``*.md``),
        ``keep_queries`` and ``progress`` as in ``add``, ``max_document_bytes``.
        """
        progress = options.pop("progress", None)
        with self._workspace.writing():
            changes = self._workspace.sync(Path(folder), remove, **options)
            self._embed_new(progress)
        return changes

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents and all that belongs to them; none if an id is unknown."""
        with self._workspace.writing():
            self.catalog.documents.remove(ids)
            self.searcher.update_codes()

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many."""
        with self._workspace.writing():
            removed = self.catalog.documents.keep_only(ids)
            self.searcher.update_codes()
        return removed

    def get(self, id_: str) -> Document:
        """Return a document, or a chunk of one."""
        return self.catalog.documents.read(id_)

    def chunks(self, id_: str) -> list[Chunk]:
        """Return the chunks of a document, in order; none if documents are not split."""
        return self.catalog.documents.chunks_of(id_)

    def ids(self) -> list[str]:
        """Return the ids of all documents, in the order they were added."""
        return self.catalog.documents.ids()

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the index."""
        return self.catalog.documents.unknown(ids)

    def __len__(self) -> int:
        """The number of documents."""
        return self.catalog.documents.total()

    def finish(self, progress: Progress | None = None) -> None:
        """Continue interrupted work, and try again to embed texts that the embedder refused."""
        with self._workspace.writing():
            self.catalog.waiting.retry_refused()
            self._embed_new(progress, verify=True)

    def _embed_new(self, progress: Progress | None, verify: bool = False) -> None:
        """Embed texts that have no vector yet, and update the prefilter."""
        self._workspace.pipeline.run(progress)
        self.searcher.update_codes(verify=verify)

    def sharpen(
        self, source: str = "sentences", *, n: int = MOST, progress: Progress | None = None
    ) -> None:
        """Create the set ``sentences``: titles and sentences of present and future documents."""
        if source != "sentences":
            raise BadInput(f"no query source {source!r}: use 'sentences', or import_queries()")
        with self._workspace.writing():
            self.catalog.sets.ensure_sentences(n)
            self._embed_new(progress)

    def import_queries(
        self,
        lists: Mapping[str, Sequence[str]] | Iterable[tuple[str, str, Sequence[str]]],
        name: str,
        *,
        n: int | None = None,
        progress: Progress | None = None,
    ) -> tuple[int, int, list[str]]:
        """Import queries written elsewhere as the set ``name``; a new list replaces the old one.

        ``lists`` maps document ids to queries, or yields (place, id, queries); a query goes to the
        nearest chunk. Returns the numbers of lists and queries, and the unknown ids.
        """
        with self._workspace.writing():
            by_row = self.searcher.lists_by_row(lists, name, self.embed_queries)
            imported = self.catalog.sets.import_lists(name, by_row, n)
            self._embed_new(progress)
        return imported

    def generation(
        self,
        lm: str | LM | Callable[[str], str],
        settings: GenerationSettings | None = None,
        **options: Any,
    ) -> Generation:
        """Return a ``Generation`` of queries by ``lm``; ``options`` go to it and to the model."""
        from strop.generate.generation import Generation, IndexSteps

        steps = IndexSteps(self.select_references, self._embed_new, self.searcher.contrast_rate)
        return Generation(self._workspace, steps, lm, settings, **options)

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all except negative ones."""
        return self.searcher.views.query_sets()

    @property
    def sets(self) -> list[SetSize]:
        """The query sets: name, source, lists, queries and bytes of each."""
        return set_sizes(self.catalog)

    def drop_set(self, name: str) -> None:
        """Drop a query set, and the settings of ``sharp`` that were tuned with it."""
        with self._workspace.writing():
            self._workspace.drop_set(name)
            self.searcher.update_codes()

    def rename_set(self, old: str, new: str) -> None:
        """Rename a query set."""
        with self._workspace.writing():
            self.catalog.sets.rename(old, new)
            self.searcher.update_codes()

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set, including those of an older text."""
        return self.catalog.sets.of_rows(self.catalog.documents.numbers_of(id_))

    def query_lists(self, name: str) -> Iterator[tuple[str, list[str]]]:
        """Yield (document id, queries) of a set, in the order the documents were added."""
        return self.catalog.sets.lists(self.searcher.require(name))

    def triplets(self, name: str, negatives: int = 1) -> Iterator[Triplet]:
        """Yield (query, positive, negative) texts of a query set, for contrastive training."""
        from strop.generate.triplets import triplets

        return triplets(self.catalog, self.searcher.require(name), negatives)

    def augment(self, name: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of a set appended (doc2query, docexp)."""
        self.searcher.require(name)
        self._workspace.augment(name, progress)

    def select_references(
        self,
        settings: ReferenceSettings | None = None,
        *,
        method: str = "auto",
        progress: Progress | None = None,
    ) -> int:
        """Select missing and outdated references; return for how many documents.

        ``settings`` are by default those of the last call, or the paper's at the first. ``method``
        is how neighbours are found: ``exact``, ``cells`` (approximate) or ``auto``, by size.
        """
        from strop.references.updates import update_references  # compiled: slow to load

        with self._workspace.writing():
            snapshot = self.searcher.views.snapshot()
            return update_references(self.catalog, snapshot, settings, method, progress)

    def references_of(self, id_: str) -> SelectedReferences | None:
        """Return a document's references, None if none were selected for it."""
        return self.catalog.references.of(self.catalog.documents.number_of(id_))

    def search(
        self,
        queries: str | Iterable[str] | Vectors,
        k: int = 10,
        method: str | Method | None = None,
        *,
        where: Mapping[str, Any] | None = None,
        fields: Sequence[str] = HIT_FIELDS,
        exact: bool = False,
        expand: QueryMethod | None = None,
        vectors: Vectors | None = None,
        chunks: bool = False,
        rerank: str | Reranker | None = None,
        **settings: Any,
    ) -> Hits:
        """Return the top k documents for each query; queries are texts or vectors (n, dim).

        ``index.search("a question")[0]`` are the hits of the first query, with these ``fields``.
        ``where`` is a filter (``{"year": {"$gte": 2020}}``), ``method`` a name of ``METHODS``,
        optionally with settings: ``"sharp:alpha=2"``. A large index scores only candidates, unless
        ``exact``. ``expand`` (``HyDE("openai:…")``) lets a model refine the queries. ``vectors``
        replace the embedding of texts. A document split into chunks is ranked by its best chunk;
        with ``chunks=True`` the hits are chunks. ``rerank``, the name of a CrossEncoder or a
        function, re-ranks the top 50.
        """
        check_fields(fields)
        k, queries = check_count("k", k), as_queries(queries)
        filter_ = None if where is None else read_filter(where)
        n = max(k, RERANKED) if rerank else k
        # All in one transaction, unless an embedder or a language model may work within it.
        waits = expand is not None or (vectors is None and isinstance(queries, list))
        with nullcontext() if waits else self.catalog.reading():
            with self.catalog.reading():
                self._workspace.warn_if_unfinished()
                chosen = self.method(method, **settings)
                self.searcher.warn_of_unknown(filter_)
            if expand is not None:
                vectors = self.refine(queries, expand, where=where).warned().vectors
            texts, rows = texts_and_vectors(queries, vectors, chosen, self.dim, self.embed_queries)
            hits = self.searcher.search(rows, texts, n, chosen, exact, fields, filter_, not chunks)
        return reranked(hits, texts, rerank, k) if rerank else hits

    async def asearch(self, *args: Any, **options: Any) -> Hits:
        """Run ``search`` in a thread, for asyncio; a cancelled task does not wait for it."""
        import asyncio  # slow to load

        return await asyncio.to_thread(self.search, *args, **options)

    def explain(
        self,
        query: str | Vectors,
        id_: str,
        method: str | Method | None = None,
        *,
        vectors: Vectors | None = None,
        **settings: Any,
    ) -> Explanation:
        """Return how much each stored query of a document changes its score in ``search``."""
        text, query_vector = text_and_vector(query, vectors, self.dim, self.embed_queries)
        return self.searcher.explain(query_vector, text, id_, self.method(method, **settings))

    def method(self, method: str | Method | None = None, **settings: Any) -> Method:
        """Return a method for this index, as tuned; ``settings`` override its defaults."""
        return self.searcher.method(method, **settings)

    def keep_tuned(self, choice: Mapping[str, Any] | None) -> None:
        """Store other defaults for ``sharp`` (``Choice.to_json``); None restores the standard."""
        tuned = None if choice is None else {**choice, "for_sets": self.query_sets()}
        with self._workspace.writing():
            self.catalog.settings.put(searchable=True, tuned=tuned)

    def embed_queries(self, queries: str | Sequence[str]) -> Vectors:
        """Embed texts as queries (n, dim), for ``search``."""
        texts = [queries] if isinstance(queries, str) else list(queries)
        return self._workspace.pipeline.embed(texts, "query")

    def refine(
        self, queries: str | Sequence[str] | Vectors, expand: QueryMethod, **options: Any
    ) -> Refined:
        """Have a language model refine queries (``expand.methods.refine``), for ``search``."""
        from strop.expand.methods import refine

        return refine(queries, expand, self.searcher, self._workspace.pipeline.embed, **options)

    def without_leaks(self, query_vectors: Vectors, gate: float) -> tuple[Index, dict[str, int]]:
        """Return a view without generated queries whose cosine to a test query is >= ``gate``.

        Also return how many queries of each set are left out.
        """
        view = self.searcher.without_leaks(query_vectors, gate, self._workspace.pipeline.embed)
        return Index(self._workspace, view[0]), view[1]

    def info(self) -> dict[str, Any]:
        """Return what the index contains, as JSON values."""
        return {**self._workspace.info(), "tuned": self.searcher.tuned_record()}

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Read everything and return the problems; ``repair`` recomputes lost vectors."""
        if not repair:
            return self._workspace.check(progress)
        with self._workspace.writing():
            update_codes = partial(self.searcher.update_codes, verify=True, anew=True)
            return self._workspace.repair(update_codes, progress)

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> int:
        """Free unused space; return how many bytes. ``query_vectors``: see ``create``."""
        with self._workspace.writing():
            before = sizes(self.catalog)["total"]
            self._workspace.compact(progress, query_vectors)
            self.searcher.update_codes(verify=True)
            self._workspace.shrink()
        return int(before - sizes(self.catalog)["total"])

    def publish(self, url: str, **options: Any) -> Publication:
        """Create or update a copy in a database; ``options`` are those of ``engines.publish``."""
        from strop.engines.publish import publish

        return publish(self.searcher, url, **options)

    def trust(self) -> list[str]:
        """Allow the embedder that somebody else's index names; return what this permits."""
        return self._workspace.trust()
