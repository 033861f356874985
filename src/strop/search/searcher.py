"""Searches of an index folder: methods, filters, hits, explanations (the ranking: ranking.py)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.common.arrays import Floats, Ints, ranges
from strop.errors import BadInput
from strop.filters import Filter, kind_names
from strop.methods import (
    METHODS,
    WORDS,
    Method,
    check_method,
    chosen_method,
    default_methods,
    sharp_with,
)
from strop.search.chunk_queries import Lists, lists_by_chunk
from strop.search.embedder_checks import contrast_rate, lacks_language
from strop.search.explain import Explanation, ScoreInputs, explain, score_inputs_of
from strop.search.filtered import FilteredDocuments, select
from strop.search.folder import FolderStore, first_depth
from strop.search.grouping import best_documents, group
from strop.search.hits import read_hits
from strop.search.leaks import Embed, drop_leaks
from strop.search.ranking import rank
from strop.search.views import Removed, View, Views
from strop.storage.catalog import Catalog
from strop.storage.database import reporting_damage
from strop.storage.ledger import DOCUMENTS
from strop.storage.query_sets import QuerySet, augmented_set
from strop.storage.snapshot import Snapshot
from strop.types import Hits, Vectors

if TYPE_CHECKING:
    from strop.search.prefilter.cache import CodeCache
    from strop.search.prefilter.prefilter import Prefilter

PREFILTER_FROM = 2000
"""From this many documents on, a search scores candidates only; fewer take milliseconds."""
SCANNED_SHARE = 0.01
"""If a filter selects at most this share, all of it is scored: a prefilter reads every row."""


class Searcher:
    """Searches one index folder. It writes only the prefilter's codes, and only for the writer.

    ``fixed`` is explained at ``Views``.
    """

    def __init__(self, catalog: Catalog, fixed: tuple[Snapshot, Removed] | None = None) -> None:
        self.catalog = catalog
        self.views = Views(catalog, fixed)

    def close(self) -> None:
        """Release the vectors and codes."""
        self.views.close()
        if "codes" in vars(self):
            self.codes.close()

    @cached_property
    def codes(self) -> CodeCache:
        """The file of the prefilter's codes."""
        from strop.search.prefilter.cache import CodeCache  # compiled code takes long to load

        return CodeCache(self.catalog)

    def without_leaks(
        self, query_vectors: Vectors, gate: float, embed: Embed
    ) -> tuple[Searcher, dict[str, int]]:
        """Return a searcher without generated queries whose cosine to a test query is >= ``gate``.

        Also returns how many of each set are left out.
        """
        with self.catalog.reading():
            snapshot, removed = drop_leaks(
                self.catalog, self.views.snapshot(), query_vectors, gate, embed
            )
        left_out = {
            name: sum(int(flags.sum()) for flags in lists.values())
            for name, lists in removed.items()
        }
        return Searcher(self.catalog, (snapshot, removed)), left_out

    def update_codes(self, *, verify: bool = False, anew: bool = False) -> None:
        """Compute the prefilter's codes if the index is large; only the writer calls it.

        With ``verify`` they are examined even if few documents changed, with ``anew`` all are
        recomputed: a damaged file may look correct.
        """
        names, size = self.views.query_sets(), self.catalog.documents.count()
        # Half the limit: codes are not dropped whenever the size varies around it.
        small = not names or size < PREFILTER_FROM // 2
        if (small or anew) and self.catalog.settings.sidecar("candidates") is not None:
            self.codes.drop()
        if not names or size < PREFILTER_FROM or (not verify and self._codes_suffice(names)):
            return
        with self.catalog.reading():
            view = self.views.of(METHODS["sharp"])
        if view.layout.size >= PREFILTER_FROM:  # some documents may have no vectors yet
            self.codes.update(view)

    def _codes_suffice(self, names: list[str]) -> bool:
        """Return whether too few documents changed to compute codes, from the log of changes.

        Examining all documents would make a small change of a large index slow.
        """
        settings = self.catalog.settings
        file, stored = settings.sidecar("candidates"), settings.get("codes")
        if file is None or stored is None:
            return False
        with reporting_damage(self.catalog.path, "settings of search codes"):
            version, spare = int(stored["version"]), int(stored["spare"])
            if stored["file"] != file or stored["sets"] != names:
                return False
        changes = self.catalog.vectors.changes(version)
        return changes is not None and int((1 + changes[:, 1] - changes[:, 0]).sum()) <= spare

    # -- methods --------------------------------------------------------------------------

    def require(self, name: str) -> QuerySet:
        """Return a query set; name the remedy if the index has none of that name."""
        sets = self.catalog.sets.all()
        if name not in sets:
            names = [other for other, set_ in sets.items() if not set_.augmented]
            remedy = (
                f"Make it: strop queries {self.catalog.folder} --style sentences"
                if name == "sentences"
                else f"Import one: strop queries {self.catalog.folder} --file FILE --set {name}"
            )
            raise BadInput(
                f"{self.catalog.folder} has no query set {name!r}"
                f" (it has: {', '.join(names) or 'none'}). {remedy}"
            )
        return sets[name]

    def method(self, method: str | Method | None, **settings: Any) -> Method:
        """Return a method for this index; ``settings`` such as ``alpha`` override its defaults.

        The defaults of ``sharp`` are those ``strop tune`` chose for this index, if it did.
        """

        def read() -> Method:
            default = "sharp" if self.views.query_sets() else "trad"
            chosen = chosen_method(default if method is None else method, settings, self.methods())
            for name in chosen.sets or ():
                self.require(name)
            if chosen.sets is None and not self.views.query_sets():
                raise BadInput(
                    f"{chosen.name} needs a query set and {self.catalog.folder} has none: "
                    f"strop queries {self.catalog.folder} --style sentences"
                )
            return chosen

        with self.catalog.reading():
            if settings or isinstance(method, Method):
                return read()
            return self.catalog.settings.once_per_version(f"method {method!r}", read)

    def methods(self) -> dict[str, Method]:
        """Return all methods by name, with the defaults of this index."""

        def read() -> dict[str, Method]:
            methods, tuned = self.untuned_methods(), self.tuned_record()
            if tuned is None or not tuned["in_use"]:
                return methods
            return methods | {"sharp": sharp_with(tuned["method"])}

        return self.catalog.settings.once_per_version("methods", read)

    def untuned_methods(self) -> dict[str, Method]:
        """Return all methods by name, with the defaults of an index that was not tuned."""

        def read() -> dict[str, Method]:
            embedder, sets = self.catalog.embedder["name"], self.catalog.sets.all().values()
            sentences = [set_.name for set_ in sets if set_.settings["source"] == "sentences"]
            if embedder in WORDS or not sentences:
                return default_methods(embedder)
            return default_methods(embedder, lacks_language(self.views.snapshot(), sentences[0]))

        return self.catalog.settings.once_per_version("untuned", read)

    def tuned_record(self) -> dict[str, Any] | None:
        """Return what ``strop tune`` stored, and whether it is in use; None if it stored nothing.

        ``unused`` is the reason if not: a change of the query sets, or whitening, which earlier
        versions had. A record that ``strop tune`` cannot have written is refused.
        """
        stored = self.catalog.settings.get("tuned")
        if stored is None:
            return None
        with reporting_damage(self.catalog.path, "tuned settings"):
            settings = dict(stored["method"])
            whitened = settings.pop("whiten", 0)  # a setting of earlier versions
            try:
                check_method(sharp_with(settings))
            except BadInput as error:
                raise ValueError(str(error)) from error
            record = {**stored, "method": settings, "for_sets": list(stored["for_sets"])}
        unused = "" if record["for_sets"] == self.views.query_sets() else "the query sets changed"
        unused = "it needs whitening, which was removed" if whitened else unused
        return {**record, "in_use": not unused, "unused": unused}

    # -- searching ------------------------------------------------------------------------

    def search(
        self,
        query_vectors: Vectors,
        query_texts: Sequence[str],
        k: int,
        method: Method,
        exact: bool = False,
        fields: Sequence[str] = (),
        where: Filter | None = None,
        by_document: bool = False,
    ) -> Hits:
        """Return the best k documents that match ``where`` for each query, with some fields.

        ``query_texts`` may be empty; then words do not count. If documents are split, hits are
        chunks unless ``by_document``.
        """
        if not query_texts and method.words:
            method = replace(method, words=0.0)
        with self.catalog.reading():  # scores and documents must be of the same version
            view = self.views.of(method)
            selected = (
                FilteredDocuments() if where is None else select(self.catalog, view.cache, where)
            )
            layout = selected.layout(view.layout)
            by_document = by_document and self.catalog.documents.are_split()
            compared: list[Ints] = []

            def best(n: int) -> tuple[Floats, Ints]:
                store = self._store_for(view, method, n, exact, selected)
                scores, places = rank(store, query_vectors, query_texts, n)
                compared.extend(map(selected.among_all, store.compared))
                return scores, selected.among_all(places)

            with np.errstate(over="ignore", invalid="ignore"):  # from damaged rows: verified below
                group_of = partial(group, self.catalog, view.cache)
                scores, places = (
                    best_documents(best, group_of, k, layout.size) if by_document else best(k)
                )
            if method.bm25 != "only" and not self.views.fixed:
                self._verify(view, method, places, compared)
            return read_hits(
                self.catalog, self.views, view, method, query_vectors, query_texts,
                (scores, places), fields, by_document,
            )  # fmt: skip

    def _verify(self, view: View, method: Method, places: Ints, others: Sequence[Ints]) -> None:
        """Compare the vectors of the documents at ``places`` with their checksums.

        Of ``others`` only the documents' own vectors are compared.
        """
        sets, names, snapshot = self.catalog.sets.all(), view.names, view.snapshot
        if method.augmented is not None:
            names = [*names, augmented_set(method.augmented)]
        spans = {DOCUMENTS: snapshot.documents}
        spans |= {sets[name].set_id: snapshot.sets[name] for name in names}
        best = {*places.ravel().tolist()}
        compared = np.array([*best.union(*(some.tolist() for some in others))], np.int64)
        for set_id, lists in spans.items():
            verified = compared if set_id == DOCUMENTS else np.array([*best], np.int64)
            rows = ranges(lists.start[verified], lists.count[verified])
            self.catalog.vectors.verify_rows(set_id, lists.vectors, rows, lists.known_sums)

    def warn_of_unknown(self, where: Filter | None) -> None:
        """Warn the caller's caller about fields, or kinds of values, that no document has."""
        if where is None:
            return
        for field, (kinds, stored) in self.catalog.facets.other_kinds(where).items():
            warnings.warn(
                f"filter: {field!r} is compared with {kind_names(kinds)}, and documents have"
                f" {kind_names(stored)} there. Write numbers without quotes, texts in quotes, dates"
                " as 2024-05-01",
                stacklevel=3,
            )
        if unknown := self.catalog.facets.unknown(where):
            names = self.catalog.facets.field_names()
            shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            warnings.warn(
                f"filter: no document has the field {', '.join(map(repr, unknown))}"
                f" (fields there are: {shown or 'none'})",
                stacklevel=3,
            )

    def _store_for(
        self, view: View, method: Method, k: int, exact: bool, selected: FilteredDocuments
    ) -> FolderStore:
        """Return the documents to search: all, or those that a filter selected."""
        counts_words = method.bm25 != "no" or bool(method.words)
        words = selected.words(self.views.words(method)) if counts_words else None
        depth = first_depth(k) if words else k
        prefilter = None if exact else self._prefilter(view, method, depth, selected)
        return FolderStore(selected.layout(view.layout), method, words, prefilter)

    def prefilter(self, method: Method, k: int) -> Prefilter | None:
        """Return the prefilter that a search for the best k would use, None if none."""
        with self.catalog.reading():
            return self._prefilter(self.views.of(method), method, k, FilteredDocuments())

    def _prefilter(
        self, view: View, method: Method, k: int, selected: FilteredDocuments
    ) -> Prefilter | None:
        total, size = view.layout.size, selected.layout(view.layout).size
        if total < PREFILTER_FROM or size <= SCANNED_SHARE * total:
            return None
        if method.bm25 != "no" or self.views.fixed or view.names != self.views.query_sets():
            return None
        from strop.search.prefilter.prefilter import suits

        prefilter = self.codes.prefilter(view) if suits(method, size, k) else None
        if prefilter is None or selected.places is None:
            return prefilter
        prefilter = selected.prefilter(prefilter)
        return prefilter if suits(method, prefilter.usable, k) else None

    def _place(self, view: View, id_: str) -> int:
        numbers, number = view.snapshot.numbers, self.catalog.documents.number_of(id_)
        place = int(np.searchsorted(numbers, number))
        if place == len(numbers) or numbers[place] != number:
            raise BadInput(
                f"document {id_!r} has no vector yet: strop finish {self.catalog.folder}"
            )
        return place

    def explain(
        self, query_vector: Vectors, query_text: str, id_: str, method: Method
    ) -> Explanation:
        """Return how much each stored query of a document (or its best chunk) moved its score."""
        if method.weighting == "none":
            raise BadInput(f"{method.name} uses no stored queries: there is nothing to explain")
        if method.bm25 != "no":
            raise BadInput(f"{method.name} fuses ranks, which no stored query moves: explain sharp")
        with self.catalog.reading():
            ids = [*self.catalog.documents.ids_of(self.catalog.documents.numbers_of(id_)).values()]
            inputs = self.score_inputs(ids, query_text if method.words else "", method)
        pairs = zip(ids, inputs, strict=True)
        explanations = [explain(row_id, query_vector, row, method) for row_id, row in pairs]
        return max(explanations, key=lambda explanation: explanation.score)

    def score_inputs(self, ids: Sequence[str], query: str, method: Method) -> list[ScoreInputs]:
        """Return the inputs of the scores of documents, or of chunks: vectors, texts, words."""
        with self.catalog.reading():
            view = self.views.of(method)
            places = np.array([self._place(view, id_) for id_ in ids], np.int64)
            numbers = view.snapshot.numbers[places].tolist()
            texts = self.views.mixed_texts(view, method, numbers)
            words = self.views.words(method).of(query).at(places) if query else np.zeros(len(ids))
            return score_inputs_of(
                view.layout.fetch(places), [texts[number] for number in numbers], words
            )

    # -- documents ------------------------------------------------------------------------

    def lists_by_row(
        self, lists: Lists, style: str, embed: Callable[[list[str]], Vectors]
    ) -> Lists:
        """Return lists of queries by row: for split documents, by chunk."""
        if not self.catalog.documents.are_split():
            return lists
        return lists_by_chunk(self.catalog, self.views, lists, style, embed)

    def vector_of(self, id_: str) -> Vectors:
        """Return a document's own vector (dim,)."""
        view = self.views.of(METHODS["trad"])
        return np.array(view.layout.document(self._place(view, id_)))

    def contrast_rate(self, name: str) -> float | None:
        """Return the share of a set's queries nearer to their document than to all its references.

        None if no document has references. It is a measurement, not a target: the queries that
        an embedder places wrongly are those that it can learn from.
        """
        with self.catalog.reading():
            set_ = self.require(name)
            view = self.views.of(Method("contrast", sets=(name,)))
            return contrast_rate(self.catalog, view.snapshot, view.layout, set_.negative)
