"""The index folder: documents, their vectors and query sets; sharpening, search, explanation."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from strop import candidates as candidates_module
from strop.candidates import Candidates, TwoStage, candidates_for, mean_vectors
from strop.catalog import Catalog, QuerySet, expanded_set
from strop.embed import Embedder
from strop.errors import (
    BadIndex,
    BadInput,
    IndexBusy,
    IndexDamaged,
    MissingExtra,
    StropError,
)
from strop.explain import Explanation, explain
from strop.generate import Generation, GenerationSettings, Summary
from strop.intake import CATALOG, about_embedder, check_style, is_left_over, load_embedder, placed
from strop.kernels import Ints, unit_rows
from strop.lm import LM
from strop.lm import load as load_lm
from strop.lm.prices import Price
from strop.methods import METHODS, Method, parse_method
from strop.pipeline import Pipeline
from strop.reference_store import Selected, references_of, update_references
from strop.references import ReferenceSettings
from strop.search import Layout
from strop.sentences import MOST
from strop.snapshot import Snapshot, load_snapshot
from strop.types import Document, Hits, Progress, Vectors
from strop.vectors import (
    DEFAULT_STORED,
    cannot_write,
    check_stored,
    stored_as,
    vector_file,
    whole_rows,
)


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

    def __init__(self, path: Path, catalog: Catalog, embedder: Embedder | None) -> None:
        """Use ``create`` or ``open`` instead."""
        self.path = path
        self._catalog = catalog
        self._embedder = embedder
        self._made_by: dict[str, Any] = catalog.meta("embedder")
        # Replaced together: threads may be looking at different versions at the same time.
        self._seen: tuple[Snapshot, dict[object, Layout]] | None = None
        self._two_stage: tuple[int, TwoStage | None] | None = None
        self._pipeline = Pipeline(path, catalog, self.dim, lambda: self.embedder)
        self._writer = FileLock(path / "writer.lock", timeout=0)

    # -- opening --------------------------------------------------------------------------

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

        ``query_vectors`` says how the vectors of its query sets are stored: ``int8``,
        ``float16`` or ``float32``. The documents' own are always float32.
        """
        folder = Path(path)
        check_stored(query_vectors)
        if (folder / CATALOG).exists():
            raise BadIndex(f"{folder} is an index already: open it, or choose another folder")
        if folder.exists() and not is_left_over(folder):
            raise BadIndex(f"{folder} is there already and is no index: choose another folder")
        model = load_embedder(embedder, options)
        about = about_embedder(model)
        try:
            (folder / "vectors").mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "writer.lock", timeout=0):
                if (folder / CATALOG).exists():  # made by another process meanwhile
                    raise BadIndex(f"{folder} is an index already: open it, or choose another")
                catalog = Catalog.create(
                    folder / CATALOG, {"embedder": about, "query_vectors": query_vectors}
                )
        except Timeout:
            raise IndexBusy(f"another process is making an index at {folder}") from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        return cls(folder, catalog, model)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] | None = None,
        **options: Any,
    ) -> Index:
        """Open an index. Its embedder is loaded when first needed, unless one is given."""
        folder = Path(path)
        if not (folder / CATALOG).exists():
            what = "is not an index" if folder.exists() else "does not exist"
            raise BadIndex(f"{folder} {what}. Make one: strop build CORPUS -o {folder}")
        index = cls(folder, Catalog(folder / CATALOG), None)
        if embedder is not None or options:
            embedder = embedder or index._made_by["name"]
            try:
                if isinstance(embedder, str) and embedder != index._made_by["name"]:
                    raise index._other_embedder(embedder)  # before loading it for nothing
                index._use(load_embedder(embedder, options))
            except StropError:
                index.close()
                raise
        return index

    def close(self) -> None:
        """Let go of the catalog's connections."""
        self._catalog.close()
        self._seen = self._two_stage = None

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder the index was made with."""
        if self._embedder is None:
            self._use(load_embedder(self._made_by["name"], self._made_by["options"]))
        assert self._embedder is not None
        return self._embedder

    def _use(self, embedder: Embedder) -> None:
        # A service would have to be asked for its dimension; replies are checked anyway.
        asked = self.dim if embedder.name.startswith("api:") else None
        made, now = self._made_by, about_embedder(embedder, dim=asked)
        if now["name"] != made["name"]:
            raise self._other_embedder(now["name"])
        for what in ("revision", "dim", "prompts", "settings"):
            if now[what] != made[what]:
                raise BadIndex(
                    f"{self.path} was made by embedder {made['name']!r} with {what} "
                    f"{made[what]!r}, not {now[what]!r}: vectors of two models do not mix. Use the "
                    "first, or build another index"
                )
        self._embedder = embedder

    def _other_embedder(self, name: str) -> BadIndex:
        return BadIndex(
            f"{self.path} was made by embedder {self._made_by['name']!r}, not {name!r}: vectors of "
            "two models do not mix. Use the first, or build another index"
        )

    @property
    def dim(self) -> int:
        """The length of every vector."""
        return int(self._made_by["dim"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer; waits for nobody."""
        try:
            self._writer.acquire()
        except Timeout:
            raise IndexBusy(
                f"another process is writing to {self.path}. Reading it is fine meanwhile; "
                "write again when that one has finished"
            ) from None
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            yield
        finally:
            self._writer.release()

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
        with self._writing():
            changes = Changes(*self._catalog.store(placed(documents)))
            self._make_vectors(progress)
        return changes

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents and all that hangs on them; with an unknown id, none."""
        with self._writing():
            self._catalog.remove(ids)

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many went."""
        if isinstance(ids, str):
            raise BadInput(f"keep_only takes a list of ids, not {ids!r}: write [{ids!r}]")
        kept = set(ids)
        with self._writing():
            gone = [id_ for id_ in self.ids() if id_ not in kept]
            if gone:
                self._catalog.remove(gone)
        return len(gone)

    def delete(self) -> None:
        """Close the index and delete its folder."""
        with self._writing():
            self.close()
        shutil.rmtree(self.path)

    def get(self, id_: str) -> Document:
        """Return a document."""
        with self._catalog.reading():
            return self._catalog.document(self._catalog.number_of(id_))

    def ids(self) -> list[str]:
        """Return the ids of all documents, in the order they came."""
        return list(self._catalog.all_ids())

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are no document here."""
        return self._catalog.unknown(ids)

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        """Return a document's stored queries by set."""
        with self._catalog.reading():
            number = self._catalog.number_of(id_)
            return {
                set_.name: self._catalog.queries(set_, number)
                for set_ in self._catalog.sets().values()
                if set_.settings["source"] != "expanded"
            }

    def __len__(self) -> int:
        """The number of documents."""
        return len(self._catalog)

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
        with self._writing():
            self._catalog.ensure_set("sentences", self._stored("sentences", settings))
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
        with self._writing():
            with self._catalog.writing():  # the set and its lists, or neither
                settings = self._stored(style, {"source": "file", "kind": "query"})
                set_ = self._catalog.ensure_set(style, settings)
                taken = self._catalog.store_queries(set_, lists, n)
            self._make_vectors(progress)
        return taken

    def generation(
        self,
        lm: str | LM | Callable[[str], str],
        settings: GenerationSettings,
        *,
        limit: int | None = None,
        price: Price | None = None,
        **options: Any,
    ) -> Generation:
        """Plan queries written by a language model; ``estimate()`` says what it would cost."""
        return Generation(
            self._catalog, load_lm(lm, **options), settings, limit=limit, given_price=price
        )

    def generate(
        self,
        generation: Generation,
        *,
        budget: float | None = None,
        progress: Progress | None = None,
    ) -> Summary:
        """Ask the model what is not answered yet, keep every reply, and embed the queries."""
        with self._writing():
            total = sum(1 for _ in generation.waiting())
            summary = generation.run(budget=budget, progress=progress, total=total)
            settings = self._stored(generation.style, generation.set_settings)
            set_ = self._catalog.ensure_set(generation.style, settings)
            self._catalog.store_generated(set_, generation.lists(summary))
            self._make_vectors(progress)
        return summary

    def expand(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of a set appended (doc2query, docexp)."""
        self._require(style)
        settings = {"source": "expanded", "kind": "document", "of": style}
        known = self._catalog.sets().get(expanded_set(style))
        if known is not None and not self._catalog.waiting_lists(known):
            return  # readers need not wait for a writer
        with self._writing():
            self._catalog.ensure_set(expanded_set(style), settings)
            self._pipeline.run(progress, expanded=style)

    def _stored(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Add to a set's settings how its vectors are stored: as they are, or as the index says."""
        known = self._catalog.sets().get(name)
        said = known.settings if known else {"vectors": self._catalog.meta("query_vectors")}
        return {**settings, **({"vectors": said["vectors"]} if said.get("vectors") else {})}

    def _make_vectors(self, progress: Progress | None) -> None:
        """Make the vectors that are missing, and let the graph of candidates follow."""
        self._pipeline.run(progress)
        with suppress(MissingExtra):  # searches are exact then, and say so
            self._link(progress)

    def _link(self, progress: Progress | None, anew: bool = False) -> None:
        """Bring the graph of candidates up to date where the index is large and much changed."""
        with self._catalog.reading():
            if not self._query_sets() or len(self) < candidates_module.TWO_STAGE_FROM:
                return
            snapshot, layout = self._layout(METHODS["sharp"])
            made_from = self._made_from(snapshot)
        names = self._query_sets()
        folder = self.path / "ann"
        graph = Candidates.empty(self.dim, made_from.shape[1])
        wanted = np.arange(layout.size)
        if folder.exists() and not anew:
            try:
                held = Candidates.open(folder)
                two = TwoStage.match(held, layout, made_from)
                if held.about.get("sets") == names and not two.mostly_gone:
                    if not two.behind:
                        return
                    graph, wanted = Candidates.open(folder, memory_mapped=False), two.tail
            except IndexDamaged:
                pass  # made anew
        graph.add(mean_vectors(layout.only(wanted)), made_from[wanted], progress)
        graph.write(folder, {"sets": names})
        self._two_stage = None

    def _made_from(self, snapshot: Snapshot) -> Ints:
        """Return for each document its number and where its vectors stand: (n, columns)."""
        sets = [snapshot.sets[name] for name in self._query_sets()]
        columns = [snapshot.numbers, snapshot.documents.start]
        return np.stack(columns + [part for of in sets for part in (of.start, of.count)], axis=1)

    def _two(self, snapshot: Snapshot, layout: Layout, method: Method, k: int) -> TwoStage | None:
        """Return the graph beside a layout where a search should use it, else None."""
        names = self._query_sets()
        if (
            layout.size < candidates_module.TWO_STAGE_FROM
            or layout.size < 4 * candidates_for(k)
            or method.weighting != "softmax"
            or method.alpha <= 0
            or method.n is not None
            or self._mixed(method) != names
        ):
            return None
        held = self._two_stage
        if held is None or held[0] != snapshot.version:
            two = None
            try:
                graph = Candidates.open(self.path / "ann")
                if graph.about.get("sets") == names:
                    two = TwoStage.match(graph, layout, self._made_from(snapshot))
            except (IndexDamaged, MissingExtra) as error:
                warnings.warn(
                    f"searching all {layout.size:,} documents, not candidates only: {error}. "
                    f"To make them: strop check {self.path} --repair",
                    stacklevel=3,
                )
            held = self._two_stage = snapshot.version, two
        return held[1]

    def recall(self, n: int = 100, k: int = 10) -> dict[str, Any]:
        """Compare the best k of two-stage searches with the exact ones, for n stored queries."""
        method = self.method("sharp")
        with self._catalog.reading():
            snapshot, layout = self._layout(method)
            rows = layout.sample_queries(n)
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

    def finish(self, progress: Progress | None = None) -> None:
        """Go on with work that was interrupted; does nothing where none was."""
        with self._writing():
            self._make_vectors(progress)

    def _require(self, style: str) -> QuerySet:
        sets = self._catalog.sets()
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
        memory: int = 500_000_000,
        progress: Progress | None = None,
    ) -> int:
        """Choose each document's contrastive references where missing or out of date.

        ``method`` finds neighbours: ``exact``, ``cells`` (approximate) or ``auto``, by size.
        Returns for how many documents they were chosen.
        """
        with self._writing():
            with self._catalog.reading():
                snapshot, _ = self._layout(METHODS["trad"])
            return update_references(
                self._catalog, snapshot.numbers, snapshot.documents,
                settings or ReferenceSettings(), method=method, memory=memory, progress=progress,
            )  # fmt: skip

    def references_of(self, id_: str) -> Selected | None:
        """Return a document's references, None if none were chosen for it."""
        return references_of(self._catalog, self._catalog.number_of(id_))

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
        exact: bool = False,
    ) -> Hits:
        """Return the best k documents for each query, texts or vectors (n, dim).

        ``method`` is a name of ``METHODS`` with optional settings (``"sharp:alpha=2"``). Without
        one it is ``sharp`` where the index has query sets and ``trad`` where it has none. Large
        indexes score candidates only, unless ``exact``.
        """
        if k < 1:
            raise BadInput(f"k must be 1 or more, not {k}")
        chosen = self.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        asked = self._asked(queries)
        with self._catalog.reading():  # the scan and the ids must see the same documents
            snapshot, layout = self._layout(chosen)
            two = None if exact else self._two(snapshot, layout, chosen, k)
            scores, places = (two.search if two else layout.scan)(asked, chosen, k)
            numbers = snapshot.numbers[places]
            ids = self._catalog.ids(numbers.ravel().tolist())
        named = np.array([ids[number] for number in numbers.ravel().tolist()], dtype=object)
        return Hits(named.reshape(numbers.shape), scores)

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
    ) -> Explanation:
        """Say how much each stored query of a document moved its score for ``query``."""
        chosen = self.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        if chosen.weighting == "none":
            raise BadInput(f"{chosen.name} uses no stored queries: there is nothing to explain")
        asked = self._asked([query] if isinstance(query, str) else np.atleast_2d(query))[0]
        with self._catalog.reading():
            number = self._catalog.number_of(id_)
            snapshot, layout = self._layout(chosen)
            place = int(np.searchsorted(snapshot.numbers, number))
            if place == len(snapshot.numbers) or snapshot.numbers[place] != number:
                raise BadInput(f"document {id_!r} has no vector yet: strop finish {self.path}")
            texts = [
                (name, text)
                for name in self._mixed(chosen)
                for text in self._catalog.queries(self._require(name), number)[: chosen.n]
            ]
            return explain(id_, asked, layout.document(place), layout.queries(place), texts, chosen)

    def method(
        self,
        method: str | Method | None = None,
        *,
        alpha: float | None = None,
        temperature: float | None = None,
        sets: Sequence[str] | None = None,
        n: int | None = None,
    ) -> Method:
        """Settle a method for this index; the other values override its defaults."""
        if isinstance(sets, str):
            sets = sets.split("+")
        if isinstance(method, Method):
            if any(value is not None for value in (alpha, temperature, n)) or sets:
                raise BadInput("a Method has its own settings: use dataclasses.replace on it")
            chosen = method
        else:
            if method is None:
                method = "sharp" if self._query_sets() else "trad"
            chosen = parse_method(
                method, alpha=alpha, temperature=temperature, sets=tuple(sets or ()), n=n
            )
        for name in chosen.sets or ():
            self._require(name)
        if chosen.sets is None and not self._query_sets():
            raise BadInput(
                f"{chosen.name} needs a query set and {self.path} has none: "
                f"strop queries {self.path} --style sentences"
            )
        return chosen

    def embed_queries(self, queries: str | Sequence[str]) -> Vectors:
        """Embed queries as users' queries; ``search`` takes the result (n, dim) in their place."""
        return self._pipeline.embed(
            [queries] if isinstance(queries, str) else list(queries), "query"
        )

    def _asked(self, queries: str | Sequence[str] | Vectors) -> Vectors:
        if isinstance(queries, np.ndarray):
            if queries.ndim != 2 or queries.shape[1] != self.dim:
                raise BadInput(f"query vectors must be (n, {self.dim}), not {queries.shape}")
            if not np.isfinite(queries).all():
                raise BadInput("a query vector holds NaN or infinity")
            return unit_rows(queries)
        return self.embed_queries(queries)

    def _query_sets(self) -> list[str]:
        return [
            name
            for name, set_ in self._catalog.sets().items()
            if set_.settings["source"] != "expanded"
        ]

    def _mixed(self, method: Method) -> list[str]:
        return list(self._query_sets() if method.sets is None else method.sets)

    def _layout(self, method: Method) -> tuple[Snapshot, Layout]:
        """Return the newest snapshot and its layout for a method, made anew only if changed."""
        version = self._catalog.meta("version")
        seen = self._seen
        if seen is None or seen[0].version != version:
            seen = load_snapshot(self._catalog, self.path, self.dim, version), {}
            self._seen = seen
        snapshot, layouts = seen
        names = self._mixed(method)
        key = (*names, method.n, method.expanded)
        layout = layouts.get(key)
        if layout is None:
            documents = snapshot.documents
            if method.expanded is not None:
                name = expanded_set(method.expanded)
                expanded = self._catalog.sets().get(name)
                if expanded is None or self._catalog.waiting_lists(expanded):
                    raise BadInput(
                        f"{method.name} needs every document embedded with its "
                        f"{method.expanded!r} queries: call index.expand({method.expanded!r}) first"
                    )
                documents = snapshot.sets[name]
            layout = Layout(documents, [snapshot.sets[name] for name in names], method.n)
            layouts[key] = layout
        return snapshot, layout

    # -- looking after it -----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        sizes = {
            file.relative_to(self.path).as_posix(): file.stat().st_size
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and file.name != "writer.lock"
        }
        about = {
            "path": str(self.path),
            "format": self._catalog.meta("format"),
            "embedder": self._made_by,
            **self._catalog.counts(),
            "bytes": sizes,
            "total_bytes": sum(sizes.values()),
        }
        for name, set_ in self._catalog.sets().items():
            file = vector_file(self.path, set_.set_id, stored_as(set_.settings))
            size = sizes.get(file.relative_to(self.path).as_posix(), 0)
            about["sets"][name] |= {"vectors": stored_as(set_.settings), "bytes": size}
        return about

    def _check_candidates(self) -> list[str]:
        """Return what is wrong with the graph of candidates, where there should be one."""
        if not self._query_sets() or len(self) < candidates_module.TWO_STAGE_FROM:
            return []
        try:
            Candidates.open(self.path / "ann")
        except IndexDamaged as error:
            return [f"{error}; searches look at all documents"]
        except MissingExtra:
            pass
        return []

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Return what is wrong with the index; with ``repair``, make lost vectors anew."""
        with self._writing() if repair else nullcontext():
            problems = []
            for set_ in (None, *self._catalog.sets().values()):
                wanted = self._catalog.document_rows() if set_ is None else set_.rows
                file = vector_file(self.path, None)
                if set_ is not None:
                    file = vector_file(self.path, set_.set_id, stored_as(set_.settings))
                have = whole_rows(file, self.dim)
                if have < wanted:
                    name = file.relative_to(self.path)
                    problems.append(f"{name} holds {have:,} of {wanted:,} vectors")
                    if repair:
                        self._catalog.forget_rows(set_, have)
            if repair and problems:
                self._pipeline.run(progress)
            problems += self._check_candidates()
            if repair:
                self._link(progress, anew=bool(problems))
        return problems
