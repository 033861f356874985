"""Index: the facade. It joins the folder (storage), references, generation, search, expansion.

Each method calls the package that does the work. There is no SQL and no arithmetic here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
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
from strop.storage.references import Selected
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

    ``Index.create(path)`` makes one, ``Index.open(path)`` opens one. Many processes may read while
    one writes, a second gets ``IndexBusy``. Searches see commits at once. ``catalog`` is read only.
    """

    def __init__(self, workspace: Workspace, searcher: Searcher | None = None) -> None:
        """Use ``create`` or ``open`` instead."""
        self._workspace, self.catalog = workspace, workspace.catalog
        self.path, self.dim = workspace.path, workspace.dim
        self.searcher = searcher or Searcher(self.catalog)
        self.terms = self.searcher.terms

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
        """Make an empty index in a new folder; ``options`` are the embedder's.

        ``query_vectors``: how vectors of query sets are stored, ``int8`` or ``float32``.
        ``language``, such as ``german``, decides how words are stemmed; it is detected otherwise.
        ``chunking``: ``"200:40"`` cuts documents into chunks of at most 200 tokens, 40 of them of
        the one before; None keeps them whole; ``auto`` decides by the first ones, and says so.
        """
        given = index_folder(path), embedder, options, query_vectors, language, chunking
        return cls(Workspace.create(*given))

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], /, embedder: EmbedderSpec | None = None, **options: Any
    ) -> Index:
        """Open an index. Its embedder is loaded when first needed, unless one is given.

        ``wait``: so many seconds to wait for another writer. Other ``options``: the embedder's.
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
        """The embedder the index was made with."""
        return self._workspace.embedder

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any] | tuple[Document, str]],
        progress: Progress | None = None,
        keep_queries: bool = False,
    ) -> Changes:
        """Add documents; one with a known id replaces the old one if it differs.

        All are stored or, on bad input, none. With a document may come its place in a file, for
        messages. Queries given for an older text are not used, unless ``keep_queries``.
        """
        with self._workspace.writing():
            changes = self._workspace.add(placed(documents), keep_queries)
            self._embed_new(progress)
        return changes

    def sync(self, folder: str | Path, *, remove: bool = True, **options: Any) -> Changes:
        """Add the files of a folder that are new or changed, remove the documents of those gone.

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
        """Return the chunks of a document, in order; none where documents are not cut."""
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
        """Continue work that was interrupted, and try again what the embedder refused."""
        with self._workspace.writing():
            self.catalog.waiting.retry_refused()
            self._embed_new(progress, verify=True)

    def _embed_new(self, progress: Progress | None, verify: bool = False) -> None:
        """Embed what has no vector yet, and update the prefilter."""
        self._workspace.pipeline.run(progress)
        self.searcher.update_codes(verify=verify)

    def sharpen(
        self, source: str = "sentences", *, n: int = MOST, progress: Progress | None = None
    ) -> None:
        """Make the set ``sentences``: each document's title and sentences, also of later ones."""
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
        """Return a language model's work on queries; ``options``: ``Generation``'s, the model's."""
        from strop.generate.generation import Generation, IndexSteps

        steps = IndexSteps(self.select_references, self._embed_new, self.searcher.contrast_rate)
        return Generation(self._workspace, steps, lm, settings, **options)

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all but negative ones."""
        return self.searcher.views.query_sets()

    @property
    def sets(self) -> list[SetSize]:
        """The query sets: name, source, lists, queries and bytes of each."""
        return set_sizes(self.catalog)

    def drop_set(self, name: str) -> None:
        """Drop a query set; ``sharp`` settings that were tuned with it go too."""
        with self._workspace.writing():
            self._workspace.drop_set(name)
            self.searcher.update_codes()

    def rename_set(self, old: str, new: str) -> None:
        """Give a query set another name."""
        with self._workspace.writing():
            self.catalog.sets.rename(old, new)
            self.searcher.update_codes()

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set, also those of an older text."""
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
        """Choose contrastive references where missing or out of date; return of how many documents.

        ``settings``: by default the last ones, at first the paper's. ``method`` finds neighbours:
        ``exact``, ``cells`` (approximate) or ``auto``, by size.
        """
        from strop.references.updates import update_references  # compiled: slow to load

        with self._workspace.writing():
            snapshot = self.searcher.views.snapshot()
            return update_references(self.catalog, snapshot, settings, method, progress)

    def references_of(self, id_: str) -> Selected | None:
        """Return a document's references, None if none were chosen for it."""
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
        """Return the best k documents for each query, texts or vectors (n, dim).

        ``index.search("a question")[0]`` has the hits of the first query, with the ``fields``
        named. ``where`` is a filter such as ``{"year": {"$gte": 2020}}``, ``method`` a name of
        ``METHODS``, maybe with settings (``"sharp:alpha=2"``). Large indexes score candidates only,
        unless ``exact``. ``expand`` (``HyDE("openai:…")``) has a model refine the queries.
        ``vectors`` replace the embedding of texts. Cut documents are as good as their best chunk;
        with ``chunks`` hits are chunks. ``rerank``, a CrossEncoder's name or a function, ranks the
        best 50 again.
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
        """Search (``search``) in a thread, for asyncio; a cancelled task does not wait for it."""
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
        """Say how much each stored query of a document changed its score (``search``)."""
        text, query_vector = text_and_vector(query, vectors, self.dim, self.embed_queries)
        return self.searcher.explain(query_vector, text, id_, self.method(method, **settings))

    def method(self, method: str | Method | None = None, **settings: Any) -> Method:
        """Return a method for this index, as tuned; ``settings`` override its defaults."""
        return self.searcher.method(method, **settings)

    def keep_tuned(self, choice: Mapping[str, Any] | None) -> None:
        """Store other defaults for ``sharp`` (``Choice.to_json``); None restores the usual."""
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
        """Return a view without generated queries at a cosine ``gate`` to test ones; how many."""
        view = self.searcher.without_leaks(query_vectors, gate, self._workspace.pipeline.embed)
        return Index(self._workspace, view[0]), view[1]

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        return {**self._workspace.info(), "tuned": self.searcher.tuned_record()}

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Read everything and return the problems; ``repair`` computes lost vectors again."""
        if not repair:
            return self._workspace.check(progress)
        with self._workspace.writing():
            problems = self._workspace.repair(progress)
            self.searcher.update_codes(verify=True, anew=True)
        return problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> int:
        """Free unused space; return how many bytes. ``query_vectors``: see ``create``."""
        with self._workspace.writing():
            before = sizes(self.catalog)["total"]
            self._workspace.compact(progress, query_vectors)
            self.searcher.update_codes(verify=True)
            self._workspace.shrink()
        return int(before - sizes(self.catalog)["total"])

    def publish(self, url: str, **options: Any) -> Publication:
        """Bring the copy in a database up to date; ``options`` are those of ``engines.publish``."""
        from strop.engines.publish import publish

        return publish(self.searcher, url, **options)

    def trust(self) -> list[str]:
        """Accept the embedder that somebody else's index names; return what that covers."""
        return self._workspace.trust()
