"""The index folder: documents, their vectors and query sets; sharpening, search, explanation."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, as_floats, ranges, unit_rows
from strop.embed import Embedder
from strop.errors import BadIndex, BadInput, IndexDamaged
from strop.expand.methods import QueryMethod
from strop.expand.refining import Candidate, Limits, Refined, Resources
from strop.generate.generation import Generation, IndexSteps
from strop.generate.plan import GenerationSettings
from strop.generate.triplets import Triplet, triplets
from strop.io.sentences import MOST
from strop.lm import LM
from strop.lm import load as load_lm
from strop.lm.prices import Price
from strop.methods import METHODS, Method, parse_method, sharp_with
from strop.references.selection import ReferenceSettings
from strop.references.updates import update_references
from strop.search import candidates as two_stage
from strop.search.candidate_cache import CandidateCache
from strop.search.candidates import TwoStage, two_stage_suits
from strop.search.contrast import contrast_rate
from strop.search.explain import Explanation, explain
from strop.search.layout import Layout
from strop.search.leaks import drop_leaks
from strop.search.words import DEPTH, Words, best_with_words, fuse
from strop.storage.intake import check_style, placed
from strop.storage.ledger import DOCUMENTS
from strop.storage.query_sets import QuerySet, expanded_set
from strop.storage.references import Selected
from strop.storage.snapshot import Snapshot, load_snapshot
from strop.storage.vectors import DEFAULT_STORED, check_stored
from strop.storage.workspace import Workspace
from strop.types import Document, Hits, Progress, Vectors

_SIDECAR_CHECKS = {"candidates": two_stage.problem_with_candidates}


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

    def __init__(self, workspace: Workspace) -> None:
        """Use ``create`` or ``open`` instead."""
        self._workspace = workspace
        self._catalog = workspace.catalog
        # Replaced together: threads may be looking at different versions at the same time.
        self._seen: tuple[Snapshot, dict[object, Layout]] | None = None
        self._frozen = False  # a view that never looks at the index anew
        self._counted: tuple[int, dict[object, Words]] | None = None  # BM25's, of which version
        self._gone: Mapping[str, Mapping[int, NDArray[np.bool_]]] = {}  # queries a view is without
        self._before: tuple[Ints, dict[object, Layout]] | None = None  # numbers, layouts
        self._candidates = CandidateCache(workspace.catalog, workspace.path)

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
        self._seen = self._before = None
        self._candidates.close()

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
            self._follow()

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many went."""
        if isinstance(ids, str):
            raise BadInput(f"keep_only takes a list of ids, not {ids!r}: write [{ids!r}]")
        kept = set(ids)
        with self._workspace.writing():
            gone = [id_ for id_ in self.ids() if id_ not in kept]
            if gone:
                self._catalog.documents.remove(gone)
                self._follow()
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
        set_ = self._require(name)
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
        if n < 1:
            raise BadInput(f"n must be 1 or more, not {n}")
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
        if n is not None and n < 1:
            raise BadInput(f"n must be 1 or more, not {n}")
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
        set_ = self._require(name)
        if not self._catalog.references.counts():
            raise BadInput(f"{self.path} has no references yet: strop references {self.path}")
        return triplets(self._catalog, set_, negatives)

    def contrast_rate(self, name: str) -> float | None:
        """Return the share of a set's queries nearer their document than all its references.

        None if no document has references. It is a measure, not a goal: the queries that an
        embedder places wrongly are those it can learn from.
        """
        with self._catalog.reading():
            set_ = self._require(name)
            snapshot, layout = self._layout(Method("contrast", sets=(name,)))
            return contrast_rate(self._catalog, snapshot, layout, set_.negative)

    def expand(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of a set appended (doc2query, docexp)."""
        self._require(style)
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
        self._follow()

    def _follow(self) -> None:
        """Bring the candidates up to date where the index is large and much changed."""
        names = self.query_sets()
        if not names or len(self) < two_stage.TWO_STAGE_FROM // 2:  # not at each step to and fro
            self._candidates.drop()
        if not names or len(self) < two_stage.TWO_STAGE_FROM:
            return
        with self._catalog.reading():
            snapshot, layout = self._layout(METHODS["sharp"])
        if layout.size >= two_stage.TWO_STAGE_FROM:  # not all of them may have vectors yet
            self._candidates.follow(snapshot, layout, names)

    def finish(self, progress: Progress | None = None) -> None:
        """Go on with work that was interrupted; does nothing where none was."""
        with self._workspace.writing():
            self._make_vectors(progress)

    def _require(self, style: str) -> QuerySet:
        sets = self._catalog.sets.all()
        if style not in sets:
            have = [name for name, set_ in sets.items() if set_.settings["source"] != "expanded"]
            raise BadInput(
                f"{self.path} has no query set {style!r} (it has: {', '.join(have) or 'none'}). "
                + (
                    f"Make it: strop queries {self.path} --style sentences"
                    if style == "sentences"
                    else f"Import one: strop queries {self.path} --file FILE --style {style}"
                )
            )
        return sets[style]

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
        with self._workspace.writing():
            with self._catalog.reading():
                snapshot, _ = self._layout(METHODS["trad"])
            return update_references(
                self._catalog, snapshot.numbers, snapshot.documents,
                settings or self._reference_settings(), method=method, progress=progress,
            )  # fmt: skip

    def _choose_references(self, progress: Progress | None) -> int:
        return self.select_references(progress=progress)

    def _reference_settings(self) -> ReferenceSettings:
        saved = self._catalog.references.settings()
        names = {field.name for field in fields(ReferenceSettings)}
        return ReferenceSettings(**{key: value for key, value in saved.items() if key in names})

    def references_of(self, id_: str) -> Selected | None:
        """Return a document's references, None if none were chosen for it."""
        return self._catalog.references.of(self._catalog.documents.number_of(id_))

    # -- searching ------------------------------------------------------------------------

    def search(
        self,
        queries: str | Sequence[str] | Vectors,
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
        if k < 1:
            raise BadInput(f"k must be 1 or more, not {k}")
        chosen = self.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        if expand is not None:
            refined = self.refine(queries, expand)
            if refined.failed:
                warnings.warn(refined.failure_message(), stacklevel=2)
            vectors = refined.vectors
        texts = self._texts(queries, chosen, vectors)
        if not texts:
            chosen = replace(chosen, words=0.0)
        if chosen.bm25 != "only":
            asked = self._asked(queries if vectors is None else vectors)
        with self._catalog.reading():  # the scan and the ids must see the same documents
            snapshot, layout = self._layout(chosen)
            two = None if exact else self._two(snapshot, layout, chosen, k)
            if chosen.bm25 == "no" and chosen.words:
                words = self._words(snapshot, chosen)
                scores, places = best_with_words(layout, words, texts, asked, chosen, k)
            elif chosen.bm25 == "no":
                scores, places = (two.search if two else layout.scan)(asked, chosen, k)
            else:
                scores, places = self._words(snapshot).rank(texts, max(k, DEPTH))
                if chosen.bm25 == "fused":
                    dense = layout.scan(asked, chosen, max(k, DEPTH))
                    scores, places = fuse([dense, (scores, places)], layout.size, k)
                scores, places = scores[:, :k], places[:, :k]
            if chosen.bm25 != "only" and not self._frozen:
                self._verify(snapshot, chosen, np.unique(places))
            numbers = snapshot.numbers[places]
            ids = self._catalog.documents.ids_of(numbers.ravel().tolist())
        if missing := set(numbers.ravel().tolist()) - ids.keys():
            raise IndexDamaged(
                f"{self.path}: {len(missing):,} documents have vectors and no text. To mend that: "
                f"strop check {self.path} --repair"
            )
        named = np.array([ids[number] for number in numbers.ravel().tolist()], dtype=object)
        return Hits(named.reshape(numbers.shape), scores)

    def _verify(self, snapshot: Snapshot, method: Method, places: Ints) -> None:
        """Compare the rows behind the documents at ``places`` with their checksums."""
        known = self._catalog.sets.all()
        mixed = self._mixed(method)
        if method.expanded is not None:
            mixed = [*mixed, expanded_set(method.expanded)]
        spans = {DOCUMENTS: snapshot.documents}
        spans |= {known[name].set_id: snapshot.sets[name] for name in mixed}
        for set_id, of in spans.items():
            rows = ranges(of.start[places], of.count[places])
            self._catalog.vectors.verify_rows(set_id, of.vectors, rows)

    def recall(self, n: int = 100, k: int = 10) -> dict[str, Any]:
        """Compare the best k of two-stage searches with the exact ones, for n stored queries.

        They are asked by their vectors; searches that count words score every document.
        """
        method = replace(self.method("sharp"), words=0.0)
        with self._catalog.reading():
            snapshot, layout = self._layout(method)
            rows, _ = layout.sample_queries(n, after=two_stage.MEASURED_WITH)
            used = self._two(snapshot, layout, method, k) is not None
        quick, exact = (self.search(rows, k, method, exact=one) for one in (False, True))
        shared = [
            len(set(a) & set(b)) / max(1, len(b))
            for a, b in zip(quick.ids.tolist(), exact.ids.tolist(), strict=True)
        ]
        return {
            "queries": len(rows), "k": k, "two_stage": used,
            "overlap": float(np.mean(shared)) if shared else 1.0,
        }  # fmt: skip

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
        if chosen.weighting == "none":
            raise BadInput(f"{chosen.name} uses no stored queries: there is nothing to explain")
        if chosen.bm25 != "no":
            raise BadInput(f"{chosen.name} fuses ranks, which no stored query moves: explain sharp")
        given = query if vectors is None else vectors
        asked = self._asked([given] if isinstance(given, str) else np.atleast_2d(given))[0]
        with self._catalog.reading():
            number = self._catalog.documents.number_of(id_)
            snapshot, layout = self._layout(chosen)
            place = int(np.searchsorted(snapshot.numbers, number))
            if place == len(snapshot.numbers) or snapshot.numbers[place] != number:
                raise BadInput(f"document {id_!r} has no vector yet: strop finish {self.path}")
            texts = [
                (name, text)
                for name in self._mixed(chosen)
                for text in self._texts_of(self._require(name), number)[: chosen.n]
            ]
            asked = layout.moved(asked[None], chosen)[0]
            added = 0.0
            if chosen.words and isinstance(query, str):
                added = chosen.words * float(self._words(snapshot, chosen).share(query)[place])
            own, rows = layout.document(place), layout.queries(place)
            return explain(id_, asked, own, rows, texts, chosen, added)

    def method(
        self,
        method: str | Method | None = None,
        *,
        alpha: float | None = None,
        temperature: float | None = None,
        sets: Sequence[str] | None = None,
        n: int | None = None,
    ) -> Method:
        """Settle a method for this index; the other values override its defaults.

        The defaults of ``sharp`` are those ``strop tune`` chose for this index, if it did.
        """
        if isinstance(sets, str):
            sets = sets.split("+")
        if isinstance(method, Method):
            if any(value is not None for value in (alpha, temperature, n)) or sets:
                raise BadInput("a Method has its own settings: use dataclasses.replace on it")
            chosen = method
        else:
            if method is None:
                method = "sharp" if self.query_sets() else "trad"
            tuned = self._tuned()
            chosen = parse_method(
                method, alpha=alpha, temperature=temperature, sets=tuple(sets or ()), n=n,
                known=METHODS | {"sharp": tuned} if tuned else METHODS,
            )  # fmt: skip
        for name in chosen.sets or ():
            self._require(name)
        if chosen.words and chosen.weighting == "max":
            raise BadInput(
                f"{chosen.name} cannot count words: its score is no cosine; leave words out"
            )
        if chosen.sets is None and not self.query_sets():
            raise BadInput(
                f"{chosen.name} needs a query set and {self.path} has none: "
                f"strop queries {self.path} --style sentences"
            )
        return chosen

    def keep_tuned(self, choice: Mapping[str, Any] | None) -> None:
        """Use other defaults for ``sharp`` from now on (``Choice.to_json``); None: the usual."""
        tuned = None if choice is None else {**choice, "for_sets": self.query_sets()}
        with self._workspace.writing():
            self._catalog.settings.put(tuned=tuned)

    def _tuned(self) -> Method | None:
        """Return the tuned ``sharp``, None if there is none or the query sets are others now."""
        kept = self._catalog.settings.get("tuned")
        if kept is None or kept["for_sets"] != self.query_sets():
            return None
        return sharp_with(kept["method"])

    def sample_queries(
        self, style: str, most: int, seed: int = 0
    ) -> tuple[list[str], list[str], Vectors]:
        """Return stored queries of a set, drawn at random: whose they are, texts and vectors."""
        set_ = self._require(style)
        with self._catalog.reading():
            snapshot, _ = self._layout(METHODS["trad"])
            spans = snapshot.sets[style]
            ends = np.cumsum(spans.count)
            total = int(ends[-1]) if len(ends) else 0
            drawn = np.sort(np.random.default_rng(seed).permutation(total)[:most])
            places = np.searchsorted(ends, drawn, "right")
            which = drawn - (ends - spans.count)[places]
            numbers = snapshot.numbers[places].tolist()
            ids = self._catalog.documents.ids_of(numbers)
            texts = [
                self._texts_of(set_, number)[at]
                for number, at in zip(numbers, which.tolist(), strict=True)
            ]
        rows = spans.start[places] + which
        return [ids[number] for number in numbers], texts, as_floats(np.array(spans.vectors[rows]))

    def sample_lists(self, style: str, most: int, seed: int = 0) -> tuple[list[list[str]], Vectors]:
        """Return the stored queries of documents drawn at random, at most ``most`` in all.

        Texts by document, and the vectors (n, dim) of all of them in the same order.
        """
        set_ = self._require(style)
        with self._catalog.reading():
            snapshot, _ = self._layout(METHODS["trad"])
            spans = snapshot.sets[style]
            drawn = np.random.default_rng(seed).permutation(len(spans.count))
            drawn = np.sort(drawn[np.cumsum(spans.count[drawn]) <= most])
            drawn = drawn[spans.count[drawn] > 0]
            lists = [self._texts_of(set_, number) for number in snapshot.numbers[drawn].tolist()]
            rows = ranges(spans.start[drawn], spans.count[drawn])
            return lists, as_floats(np.array(spans.vectors[rows]))

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
            snapshot, layout = self._layout(METHODS["trad"])

            def of(id_: str) -> Candidate:
                number = documents.number_of(id_)
                place = int(np.searchsorted(snapshot.numbers, number))
                return Candidate(
                    id_, documents.get(number).content, np.array(layout.document(place))
                )

            return [[of(id_) for id_ in ids] for ids in hits.ids.tolist()]

    def _asked(self, queries: str | Sequence[str] | Vectors) -> Vectors:
        if isinstance(queries, np.ndarray):
            if queries.ndim != 2 or queries.shape[1] != self.dim:
                raise BadInput(f"query vectors must be (n, {self.dim}), not {queries.shape}")
            if not np.isfinite(queries).all():
                raise BadInput("a query vector holds NaN or infinity")
            return unit_rows(queries)
        return self.embed_queries(queries)

    @staticmethod
    def _texts(
        queries: str | Sequence[str] | Vectors, method: Method, vectors: Vectors | None
    ) -> list[str]:
        """Return the words of the queries, where they have any."""
        if isinstance(queries, np.ndarray):
            if method.bm25 != "no":
                raise BadInput(f"{method.name} compares words: give the queries' texts")
            if vectors is not None:
                raise BadInput("give vectors once: either as the queries, or beside their texts")
            return []
        texts = [queries] if isinstance(queries, str) else list(queries)
        if vectors is not None and len(vectors) != len(texts):
            raise BadInput(f"{len(vectors):,} vectors cannot stand for {len(texts):,} queries")
        return texts

    def _words(self, snapshot: Snapshot, method: Method | None = None) -> Words:
        """Return BM25 of the documents of a snapshot, counted anew only if it changed.

        Of a ``method`` that mixes generated queries their words count as the document's own.
        """
        known = self._catalog.sets.all()
        mixed = self._mixed(method) if method else []
        sets = [known[name] for name in mixed if not known[name].derived]
        n = method.n if method and sets else None
        held = self._counted
        if held is None or held[0] != snapshot.version:
            held = self._counted = snapshot.version, {}
        key = (*(set_.name for set_ in sets), n)
        if key not in held[1]:
            numbers = snapshot.numbers.tolist()
            held[1][key] = Words(self._text_with(sets, number, n) for number in numbers)
        return held[1][key]

    def _text_with(self, sets: Sequence[QuerySet], number: int, n: int | None) -> str:
        """Return a document's text and its queries of some sets, as one."""
        texts = [self._catalog.documents.get(number).content]
        for set_ in sets:
            texts += self._texts_of(set_, number)[:n]
        return "\n".join(texts)

    def _texts_of(self, set_: QuerySet, number: int) -> list[str]:
        """Return a document's queries of a set, as far as this view has them."""
        queries = self._catalog.sets.queries(set_, number)
        gone = self._gone.get(set_.name, {}).get(number, np.zeros(len(queries), bool))
        return [text for text, out in zip(queries, gone, strict=True) if not out]

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all but negative ones."""
        return [
            name
            for name, set_ in self._catalog.sets.all().items()
            if set_.settings["source"] != "expanded" and not set_.negative
        ]

    def _mixed(self, method: Method) -> list[str]:
        return list(self.query_sets() if method.sets is None else method.sets)

    def _two(self, snapshot: Snapshot, layout: Layout, method: Method, k: int) -> TwoStage | None:
        """Return candidates beside a layout where a search should use it, else None."""
        names = self.query_sets()
        suits = two_stage_suits(method, layout.size, k) and not self._frozen
        if self._mixed(method) != names or not suits:
            return None
        return self._candidates.beside(snapshot, layout, names)

    def _layout(self, method: Method) -> tuple[Snapshot, Layout]:
        """Return the newest snapshot and its layout for a method, made anew only if changed."""
        version = self._catalog.settings.number("version")
        seen = self._seen
        if seen is None or seen[0].version != version:
            if self._frozen:
                raise BadIndex(f"{self.path} changed while it was being scored: score it again")
            snapshot = load_snapshot(
                self._catalog, self.path, self.dim, None if seen is None else seen[0]
            )
            same = seen is not None and snapshot.documents is seen[0].documents
            if seen is not None and not same:
                self._before = seen[0].numbers, seen[1]
            seen = snapshot, seen[1] if seen is not None and same else {}
            self._seen = seen
        snapshot, layouts = seen
        names = self._mixed(method)
        key = (*names, method.n, method.expanded, method.whiten)
        layout = layouts.get(key)
        if layout is None:
            documents = snapshot.documents
            if method.expanded is not None:
                name = expanded_set(method.expanded)
                expanded = self._catalog.sets.all().get(name)
                if expanded is None or self._catalog.vectors.waiting_count(expanded.set_id):
                    raise BadInput(
                        f"{method.name} needs every document embedded with its "
                        f"{method.expanded!r} queries: call index.expand({method.expanded!r}) first"
                    )
                documents = snapshot.sets[name]
            mixed = [snapshot.sets[name] for name in names]
            layout = Layout(documents, mixed, method.n, method.whiten)
            if not method.whiten:  # its map changes with the vectors
                self._carry_over(snapshot, layout, key)
            layouts[key] = layout
        return snapshot, layout

    def _carry_over(self, snapshot: Snapshot, layout: Layout, key: object) -> None:
        """Spare a layout what the one before it has computed for documents that did not change."""
        before = self._before
        older = None if before is None else before[1].pop(key, None)
        if before is None or older is None or not older.size:
            return
        at = np.minimum(np.searchsorted(before[0], snapshot.numbers), older.size - 1)
        layout.follow(older, np.where(before[0][at] == snapshot.numbers, at, -1))

    def without_leaks(self, asked: Vectors, gate: float) -> tuple[Index, dict[str, int]]:
        """Return a view for searching without generated queries close to a test query.

        Left out is every stored query whose cosine to any of ``asked`` (n, dim) is ``gate`` or
        more; also says how many of each set. Nothing in the index changes.
        """
        view = copy.copy(self)
        with self._catalog.reading():
            snapshot, _ = self._layout(METHODS["trad"])
            narrowed, view._gone = drop_leaks(
                self._catalog, snapshot, asked, gate, self._workspace.pipeline.embed
            )
        view._seen, view._before, view._frozen = (narrowed, {}), None, True
        view._counted = None
        return view, {
            name: sum(int(which.sum()) for which in of.values()) for name, of in view._gone.items()
        }

    # -- looking after it -----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        tuned = self._catalog.settings.get("tuned")
        in_use = tuned and {**tuned, "in_use": self._tuned() is not None}
        return {**self._workspace.info(), "tuned": in_use}

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Read everything and return what is wrong; with ``repair``, make lost vectors anew."""
        if not repair:
            return self._workspace.check(progress, _SIDECAR_CHECKS)
        with self._workspace.writing():
            problems = self._workspace.repair(progress, _SIDECAR_CHECKS)
            self._follow()
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
            self._follow()
            self._workspace.shrink()
        return int(before - self._workspace.sizes()["total"])

    def trust(self) -> list[str]:
        """Take the embedder that a stranger's index names as your own choice, and remember that.

        Returns what this covers: code it may run, folders it may read, addresses it may use.
        """
        return self._workspace.trust()

    def delete(self) -> None:
        """Close the index and delete its folder."""
        self._workspace.delete()
        self.close()
