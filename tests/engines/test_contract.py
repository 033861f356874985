"""The contract of every engine: a published copy answers like its index folder."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fakes import DIM, Bag, create, reopen
from helpers.postgres import postgres_server

from strop import Document, Index, connect
from strop.engines import copies, open_engine, published
from strop.engines.base import META
from strop.engines.postgres_source import sync_source
from strop.engines.publish import FORMAT
from strop.engines.published import Published
from strop.errors import BadIndex, BadInput, IndexBusy

_NAMES = itertools.count()
EXTRAS = {"duckdb": "duckdb", "lancedb": "lancedb", "qdrant": "qdrant_client"}
ENGINES = ["postgresql", *EXTRAS, "edge"]
KILLS = int(os.environ.get("STROP_KILLS", "1"))
QUERIES = ["where grows alder3", "birch4 and cedar1", "which elm2 grows", "fir1 trees"]
METHODS = [
    "sharp", "trad", "sharp:words=1", "bm25", "hybrid:of=sharp", "maxsim", "sharp:T=1",
    "sharp:sets=simple", "sharp:n=1", "indexsharp:sets=sentences",
]  # fmt: skip


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture
def edge_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open folders of Qdrant with Qdrant Edge."""
    from helpers.edge import EdgeClient

    monkeypatch.setattr("qdrant_client.QdrantClient", EdgeClient)


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a copy that does not exist yet."""
    name = f"copy{next(_NAMES)}"
    if request.param == "postgresql":
        return f"{request.getfixturevalue('postgres')}&table={name}"
    if request.param == "edge":
        pytest.importorskip("qdrant_edge", reason="pip install qdrant-edge-py")
        request.getfixturevalue("edge_client")
        return f"qdrant://{tmp_path}/edge/{name}"
    pytest.importorskip(EXTRAS[request.param], reason=f"pip install 'strop[{request.param}]'")
    return f"{request.param}://{tmp_path}/{name}"


def page(i: int, version: int = 1) -> Document:
    text = f"Alder{i} birch{i % 7} cedar{version} grow. Here elm{i % 3} fir{version} grow too."
    metadata = {"seen": i, "kind": ["even", "odd"][i % 2], "day": f"2024-01-{1 + i % 28:02}"}
    return Document(f"d{i}", text, f"Trees {i % 5}" if i % 4 else "", metadata)


UNUSUAL_DOCUMENTS = [
    Document("empty", ""),
    Document(
        "é/ü 'quoted\" %s {x} \N{SNOWMAN}", "Ünïcode grows. Здесь ель.", "T\u00a0i", {"n": None}
    ),
    Document("nul", "a\0b grows. c", "t\0", {"a\0": "b\0", "big": 2**62 + 1, "tags": ["x", "y"]}),
    Document("nested", "Inner oak.", metadata={"by": {"name": "Ada", "year": 1.5}, "ok": True}),
]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add([*(page(i) for i in range(40)), *UNUSUAL_DOCUMENTS])
        index.import_queries(
            {f"d{i}": [f"where grows alder{i}", "how"] for i in range(30)}, "simple"
        )
        yield index


@pytest.fixture(autouse=True)
def small_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search small copies like large ones, and look for changes at each search."""
    monkeypatch.setattr(copies, "SCANNED", 0)
    monkeypatch.setattr(published, "FRESH", 0.0)


def open_copy(url: str, bag: Bag | None = None) -> Published:
    copy = connect(url, bag or Bag(), name="bag", dim=DIM)
    assert isinstance(copy, Published)
    return copy


def assert_same(index: Index, copy: Published, k: int = 10, **arguments: Any) -> None:
    """Compare rankings; documents with nearly equal scores may change places."""
    folder_hits, copy_hits = (it.search(QUERIES, k, **arguments) for it in (index, copy))
    np.testing.assert_allclose(copy_hits.scores, folder_hits.scores, atol=2e-6)
    for folder_row, copy_row in zip(folder_hits, copy_hits, strict=True):
        lowest = folder_row[-1].score if folder_row else 0.0
        certain = {hit.id for hit in folder_row if hit.score > lowest + 1e-5}
        assert certain <= {hit.id for hit in copy_row}
        hits = {hit.id: hit for hit in copy_row}
        for hit in folder_row:
            if hit.id in hits:
                fields = ["id", "title", "text", "metadata", "passage", "chunk"]
                assert hits[hit.id].to_dict(fields) == hit.to_dict(fields)


def assert_complete(index: Index, copy: Published) -> None:
    """Compare everything a copy holds with its folder."""
    assert len(copy) == len(index)
    assert copy.check() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "FRESH", 1000.0)  # no check for changes now
        documents = {hit.id: hit for hit in copy.search(QUERIES[0], k=1000, method="trad")[0]}
        assert documents.keys() == {*index.ids()}
        for id_, hit in documents.items():
            doc = index.get(id_)
            assert (hit.title, hit.text, hit.metadata) == (doc.title, doc.text, doc.metadata)
            number, sets = index.catalog.documents.number_of(id_), index.catalog.sets
            lists = {name: sets.queries(set_, number) for name, set_ in sets.all().items()}
            assert copy.queries_of(id_) == {name: texts for name, texts in lists.items() if texts}
    assert_same(index, copy, method="sharp:words=1")


def test_a_copy_ranks_like_its_folder(index: Index, url: str) -> None:
    assert index.publish(url, dry_run=True).new == len(index)
    done = index.publish(url)
    assert (done.new, done.changed, done.removed) == (len(index), 0, 0)
    with open_copy(url) as copy:
        assert_complete(index, copy)
        for method in METHODS:
            assert_same(index, copy, method=method)
            assert_same(index, copy, method=method, exact=True)
        assert_same(index, copy, k=1000)
        with pytest.raises(BadInput, match="fields is a list of"):
            copy.search("alder1", fields=["txet"])
        assert copy.query_sets() == index.query_sets()
        assert copy.method() == index.method()
        in_folder, in_copy = (
            it.explain(QUERIES[0], "d3", "sharp:words=1:feedback=0.3") for it in (index, copy)
        )
        assert in_copy.score == pytest.approx(in_folder.score, abs=1e-6)
        assert [part.text for part in in_copy.queries] == [part.text for part in in_folder.queries]
        assert copy.unknown(["d1", "nobody"]) == {"nobody"}
        expected = [page(3), *UNUSUAL_DOCUMENTS]
        assert [copy.get(document.id) for document in expected] == expected
        with pytest.raises(BadInput, match="no document 'nobody'"):
            copy.get("nobody")
        with pytest.raises(BadInput, match="no query set 'other'"):
            copy.search("x", sets=["other"])
        with pytest.raises(BadInput, match="published copy"):
            copy.search("x", method="doc2query")


FILTERS: list[dict[str, Any]] = [
    {"seen": {"$gte": 20}, "kind": "odd"},
    {"kind": {"$ne": "odd"}},
    {"day": {"$lt": "2024-01-05"}},
    {"kind": {"$gt": "f"}},
    {"$or": [{"by.name": "Ada"}, {"big": {"$gt": 2**62}}]},
    {"big": {"$gt": 2**62 + 1}},
    {"n": None, "seen": {"$exists": False}},
    {"$id": {"$in": ["d1", "d2", "empty", "not here"]}},
    {"tags": "y"},
    {"ok": True},
    {"by.year": {"$lte": 1.5}},
    {"$not": {"seen": {"$lte": 1000}}},
]


def test_split_documents(url: str, tmp_path: Path) -> None:
    def long(i: int, prefix: str = "") -> Document:
        parts = (f"Alder{i} birch{n} grow here. Elm{i * n} too." for n in range(6))
        return Document(f"d#{i}", f"# One\n{prefix}" + "\n\n".join(parts), f"T{i}", {"seen": i})

    def assert_split(index: Index, copy: Published) -> None:
        assert len(copy) == len(index)
        assert copy.check() == []
        for id_ in index.ids():
            assert copy.get(id_) == index.get(id_)
            assert copy.queries_of(id_) == index.queries_of(id_)
            chunks = index.chunks(id_)
            assert copy.chunks(id_) == chunks
            assert copy.get(chunks[0].id) == index.get(chunks[0].id)
        for arguments in ({}, {"chunks": True}, {"where": {"$id": {"$in": ["d#1", "d#3"]}}}):
            assert_same(index, copy, k=5, method="sharp:words=1", **arguments)
            ids = index.search(QUERIES, 5, fields=(), **arguments).ids
            assert (copy.search(QUERIES, 5, fields=(), **arguments).ids == ids).mean() > 0.9
        in_folder, in_copy = (it.explain(QUERIES[0], "d#3") for it in (index, copy))
        assert in_copy.score == pytest.approx(in_folder.score, abs=1e-6)

    with create(tmp_path / "index", chunking="12:0") as index:
        index.sharpen()
        index.add([long(i) for i in range(8)])
        assert len(index.chunks("d#1")) > 2
        index.publish(url)
        with open_copy(url) as copy:
            assert_split(index, copy)
            index.add([long(1, "Oaks stand first. "), long(20), Document("d#2", "Short.", "T2")])
            index.remove(["d#5"])
            done = index.publish(url)
            assert done.compared == "log"
            assert_split(index, copy)
            assert copy.unknown(["d#5", "d#1", "x", "d#1#0"]) == {"d#5", "x"}
            with pytest.raises(BadInput, match="no document 'd#5'"):
                copy.get("d#5")
            assert index.publish(url).changed == 0


def test_a_copy_uses_the_tuned_feedback(index: Index, url: str) -> None:
    """Feedback needs 50 documents."""
    index.add(page(i) for i in range(40, 70))
    index.keep_tuned({"method": {"sets": None, "words": 0.5, "feedback": 2.0}})
    tuned, without = (index.search(QUERIES, feedback=weight) for weight in (2, 0))
    assert tuned.ids.tolist() != without.ids.tolist()
    index.publish(url)
    with open_copy(url) as copy:
        assert copy.method() == copy.method("sharp") == index.method()
        assert copy.method().feedback == 2.0
        assert_same(index, copy)
        assert_same(index, copy, exact=True)
        assert_same(index, copy, where={"seen": {"$gte": 10}})
        for weight in (0, 0.5):
            assert_same(index, copy, feedback=weight)
        in_folder, in_copy = (it.explain(QUERIES[0], "d3") for it in (index, copy))
        assert in_copy.score == pytest.approx(in_folder.score, abs=1e-5)


def test_filters_select_the_same_documents(index: Index, url: str) -> None:
    index.publish(url)
    with open_copy(url) as copy:
        for where in FILTERS:
            assert_same(index, copy, where=where)
            assert_same(index, copy, where=where, method="sharp:words=1", k=3)
        with pytest.warns(UserWarning, match="no document has the field 'nothing'"):
            copy.search("x", where={"nothing": 1})


def test_only_changes_are_published(index: Index, url: str) -> None:
    index.publish(url)
    with open_copy(url) as copy:
        assert_same(index, copy)
        index.add([page(1, 2), page(50), Document("d2", page(2).text, metadata={"seen": -1})])
        index.remove(["d3", "empty"])
        before = index.publish(url, dry_run=True)
        done = index.publish(url)
        assert before == done
        assert (done.new, done.changed, done.removed, done.compared) == (1, 2, 2, "log")
        assert_complete(index, copy)
        assert_same(index, copy, where={"seen": -1})
        index.drop_set("simple")
        index.publish(url)
        assert copy.query_sets() == ["sentences"]
        assert_complete(index, copy)
        index.sharpen(n=1)
        index.keep_tuned({"method": {"sets": None, "alpha": 2.0}})
        index.publish(url)
        assert copy.method().alpha == 2.0
        assert_complete(index, copy)
        again = index.publish(url)
        assert (again.new, again.changed, again.removed) == (0, 0, 0)


def test_without_a_complete_log_all_documents_are_compared(
    index: Index, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.publish(url)
    monkeypatch.setattr("strop.storage.snapshot.LOG_LEAST", 0)
    monkeypatch.setattr("strop.storage.snapshot.LOG_SHARE", 0.0)
    index.add([page(1, 2)])
    index.remove(["d5"])
    done = index.publish(url)
    assert (done.changed, done.removed, done.compared) == (1, 1, "all")
    with open_copy(url) as copy:
        assert_complete(index, copy)


def test_a_copy_of_an_empty_index(tmp_path: Path, url: str) -> None:
    with create(tmp_path / "index") as index:
        index.publish(url)
        with open_copy(url) as copy:
            assert len(copy) == 0
            assert copy.search(["a", "b"]).ids.shape == (2, 0)
            index.add([page(1)])
            index.publish(url)
            assert copy.search("alder1", method="trad").ids.tolist() == [["d1"]]


def test_connecting_to_an_unsuitable_copy_is_refused(
    index: Index, url: str, tmp_path: Path
) -> None:
    with pytest.raises(BadIndex, match="holds no copy"):
        open_copy(url)
    index.publish(url)
    with pytest.raises(BadIndex, match="was made by embedder"):
        connect(url, "wordllama")
    with pytest.raises(BadIndex, match="dim 32"):
        connect(url, lambda texts: np.ones((len(texts), 7)), name="bag", dim=7)
    with create(tmp_path / "other") as other:
        other.add([page(1)])
        with pytest.raises(BadIndex, match="another index"):
            other.publish(url)
    engine = open_engine(url)
    description = json.loads(engine.read([META])[META])
    for change, message in (
        ({"format": 99}, "another version of strop"),
        ({"embedder": {"name": 1}}, "which embedder"),
        ({"tokenizer": 99}, "another version of strop"),
        ({"sets": 5}, "publish again"),
        ({"methods": {"sharp": {}}}, "publish again"),
    ):
        with engine.publishing(DIM):
            engine.write({META: json.dumps({**description, **change}).encode()})
        with pytest.raises(BadIndex, match=message):
            open_copy(url)
    engine.close()
    index.publish(url)
    with open_copy(url) as copy:
        assert_complete(index, copy)


def test_a_copy_of_an_older_format_is_published_again(index: Index, url: str) -> None:
    """Format 2 differs only in the description: its methods had one more setting."""
    index.publish(url)
    with closing(open_engine(url)) as engine, engine.publishing(DIM):
        description = json.loads(engine.read([META])[META])
        methods = {
            name: {**method, "whiten": 0.5} for name, method in description["methods"].items()
        }
        older = {
            **description,
            "format": FORMAT - 1,
            "methods": methods,
            "whitening": {"power": 0.5},
        }
        engine.write({META: json.dumps(older).encode()})
    message = rf"another version of strop \(format {FORMAT - 1}, not {FORMAT}\): publish it again"
    with pytest.raises(BadIndex, match=message):
        open_copy(url)
    done = index.publish(url)
    assert (done.new, done.changed, done.removed, done.compared) == (0, 0, 0, "all")
    with open_copy(url) as copy:
        assert_complete(index, copy)
        assert_same(index, copy)
    assert index.publish(url).compared == "log"


def test_one_publisher_at_a_time(index: Index, url: str) -> None:
    index.publish(url)
    engine = open_engine(url)
    with engine.publishing(DIM), pytest.raises(IndexBusy, match="publishing"):
        index.publish(url)
    engine.close()
    assert index.publish(url).changed == 0


def test_a_publisher_waits_for_a_lock_released_soon(
    index: Index, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server notices late that a publisher was killed."""
    from strop.engines import postgres as module

    monkeypatch.setattr(module, "NOTICED_AFTER", 60)  # the machine may be slow
    url = f"{postgres}&table=waited"
    index.publish(url)
    engine = open_engine(url)
    with ThreadPoolExecutor(1) as threads:
        with engine.publishing(DIM):
            waiting = threads.submit(index.publish, url)
            assert not wait([waiting], 0.5).done
        assert waiting.result().changed == 0
    engine.close()


def test_readers_see_complete_documents_while_publishing(index: Index, url: str) -> None:
    """In every hit the text and the metadata are of one version."""
    index.publish(url)
    errors: list[BaseException] = []
    stop = threading.Event()
    with open_copy(url) as copy:

        def read() -> None:
            try:
                while not stop.is_set():
                    for hit in copy.search(QUERIES[0], k=5, method="sharp:words=1")[0]:
                        if hit.id.startswith("d"):
                            version = hit.metadata.get("version", 1)
                            assert f"cedar{version} " in hit.text
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for version in (2, 3, 4):
            pages = [page(i, version) for i in range(40)]
            index.add(
                Document(doc.id, doc.text, doc.title, {**doc.metadata, "version": version})
                for doc in pages
            )
            index.publish(url)
        stop.set()
        for reader in readers:
            reader.join()
        assert errors == []
        assert copy.get("d1").metadata["version"] == 4


def publish_slowly(path: Path, url: str) -> None:
    """Publish in small steps, in a process that will be killed."""
    from strop.engines import publish

    if "/edge/" in url:
        from helpers.edge import install

        install()
    publish.BATCH, publish.PIECES = 3, 20
    with reopen(path) as index:
        index.publish(url)


def test_publishing_continues_after_a_killed_publisher(index: Index, url: str) -> None:
    index.publish(url)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["helpers.fakes", "strop.engines.publish"])
    rng = random.Random(1)
    for kill in range(KILLS):
        index.add([page(i, 2 + kill) for i in range(0, 40, 2)])
        index.remove([id_ for id_ in index.ids() if id_ == f"d{2 * kill + 1}"])
        index.close()
        child = processes.Process(target=publish_slowly, args=(index.path, url))
        child.start()
        child.join(rng.uniform(0.1, 1.5))
        child.kill()
        child.join()
        child.close()
        with open_copy(url) as copy:  # the copy can be read and is consistent
            assert copy.search(QUERIES[0], k=3, method="sharp:words=1").ids.shape == (1, 3)
            assert not [problem for problem in copy.check() if "publish again" not in problem]
        index = reopen(index.path)
        index.publish(url)
        with open_copy(url) as copy:
            assert copy.check() == []
            assert_same(index, copy, method="sharp:words=1")
    with open_copy(url) as copy:
        assert_complete(index, copy)
    index.close()


def test_without_a_connection_the_error_hides_the_password(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        index.add([page(1)])
        for url in (
            "postgresql://me:secret@127.0.0.1:9/db", "qdrant+https://:secret@127.0.0.1:9/copy"
        ):  # fmt: skip
            pytest.importorskip({"p": "psycopg_pool", "q": "qdrant_client"}[url[0]])
            for action in (index.publish, connect):
                with pytest.raises(BadIndex) as caught:
                    action(url)
                assert "127.0.0.1:9" in str(caught.value)
                assert "secret" not in str(caught.value)
    with pytest.raises(BadInput, match="no engine for mysql://host"):
        connect("mysql://host/x")


def assert_sql_scores(copy: Published, run: Any, tolerance: float) -> None:
    """Compare rows (id, score, text) of an SQL query with the search of the copy."""
    for vector in copy.embed_queries(QUERIES):
        for alpha, temperature in ((1.0, 0.1), (2.0, 1.0), (0.0, 0.1)):
            expected = copy.search(
                vector[None], 44, alpha=alpha, temperature=temperature, sets=copy.query_sets()
            )[0]
            rows = run(vector, alpha, temperature)
            hits = {hit.id: hit for hit in expected if hit.score > -1}
            assert {id_ for id_, _, _ in rows} == hits.keys()
            for id_, score, text in rows:
                assert score == pytest.approx(hits[id_].score, abs=tolerance)
                assert text.replace("\0", "") == hits[id_].text.replace("\0", "")
            scores = [score for _, score, _ in rows]
            assert scores == sorted(scores, reverse=True)


def test_the_function_of_postgresql_computes_the_score(index: Index, postgres: str) -> None:
    """Rows in PostgreSQL have half precision."""
    import psycopg

    url = f"{postgres}&table=inside"
    index.publish(url)
    sql = "SELECT id, score, text FROM public.inside_search(%s::text::halfvec, 44, %s, %s, 999)"
    with open_copy(url) as copy, psycopg.connect(postgres) as connection:

        def run(vector: Any, alpha: float, temperature: float) -> Any:
            arguments = str(vector.tolist()), alpha, temperature
            return connection.execute(sql, arguments).fetchall()

        assert_sql_scores(copy, run, 3e-3)
    with open_copy(url.replace("strop@", "strop:secret@")) as copy:
        assert repr(copy) == f"Published({url.replace('strop@', 'strop:***@')!r})"


def test_the_macro_of_duckdb_computes_the_score(index: Index, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    path = tmp_path / "inside.duckdb"
    index.publish(f"duckdb://{path}")
    sql = """SELECT id, score, "text" FROM sharp(?, k := 44, alpha := ?, temperature := ?,
        nearest := 999)"""
    with (
        open_copy(f"duckdb://{path}") as copy,
        duckdb.connect(path, read_only=True) as connection,
    ):

        def run(vector: Any, alpha: float, temperature: float) -> Any:
            arguments = [vector, alpha, temperature]
            return connection.execute(sql, arguments).fetchall()

        assert_sql_scores(copy, run, 1e-5)


SOURCE = "SELECT id, name AS title, body, price, '100%' AS share FROM shop WHERE price > 0;"


def test_a_copy_reads_texts_from_the_users_table(postgres: str, tmp_path: Path) -> None:
    import psycopg

    url = f"{postgres}&table=shop_copy"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE s")
        connection.execute(
            "CREATE TABLE shop (id int PRIMARY KEY, name text, body text, price int4)"
        )
        connection.execute(
            "INSERT INTO shop SELECT i, 'Tree ' || i, 'Alder' || i || ' grows. Birch too.', i"
            " FROM generate_series(0, 30) AS i"
        )
        with create(tmp_path / "index") as index:
            index.sharpen()
            assert sync_source(index, url, SOURCE).new == 30
            assert index.publish(url, source=SOURCE).new == 30
            with open_copy(url) as copy:
                assert_complete(index, copy)
                assert copy.get("7").metadata == {"price": 7, "share": "100%"}
                assert_same(index, copy, where={"price": {"$lt": 5}})
                assert copy.info()["source"] == SOURCE
            rows = connection.execute("SELECT DISTINCT title, text FROM shop_copy_documents")
            assert rows.fetchall() == [("", "")]
            connection.execute("UPDATE shop SET body = 'Cedar4 stands.' WHERE id = 4")
            connection.execute("DELETE FROM shop WHERE id = 5")
            connection.execute("INSERT INTO shop VALUES (99, 'New', 'Elm2 grows.', 1)")
            with open_copy(url) as copy:  # before publishing
                assert copy.get("5").text == ""
            sync_source(index, url, SOURCE)
            done = index.publish(url)  # the copy knows its source
            assert (done.new, done.changed, done.removed, done.compared) == (1, 1, 1, "log")
            with open_copy(url) as copy:
                assert_complete(index, copy)
            for query in ("DROP TABLE shop", "SELECT 1; DROP TABLE shop"):
                with pytest.raises(BadInput, match="one SELECT"):
                    index.publish(url, source=query)
            with pytest.raises(BadInput, match="columns id and text"):
                sync_source(index, url, "SELECT 1 AS id, 2 AS other")
            with pytest.raises(BadIndex, match="read-only"):
                sync_source(index, url, "WITH x AS (SELECT nextval('s')) SELECT * FROM x")
            with pytest.raises(BadInput, match="needs PostgreSQL"):
                index.publish(f"lancedb://{tmp_path}/no", source=SOURCE)
