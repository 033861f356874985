"""Brings an index made by an older strop to the present format, in one transaction."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from strop.storage.database import FORMAT, SCHEMA, explained
from strop.storage.ledger import SUMS_TOGETHER, Ledger, recount
from strop.storage.vectors import map_rows, row_sums, row_type, whole_rows

_AT_ONCE = 16 * SUMS_TOGETHER
_MOVED = ("documents", "sets", "queries", "neighbors")

_FROM_1 = """
INSERT INTO documents SELECT number, id, digest, empty, title, text, metadata FROM old_documents;
INSERT INTO sets SELECT set_id, name, settings FROM old_sets;
INSERT INTO queries SELECT set_id, number, texts FROM old_queries;
INSERT INTO spans SELECT 0, number, row, 1, 0, coalesce(embedded, x''), 0 FROM old_documents
    WHERE row IS NOT NULL;
INSERT INTO spans SELECT set_id, q.number, start, count, 0, q.digest, q.digest IS NOT d.digest
    FROM old_queries q JOIN documents d USING (number);
INSERT INTO files (set_id, name, dtype, rows)
    SELECT set_id, 'queries-' || set_id || '.f32', 'float32', rows FROM old_sets;
UPDATE files SET rows = (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'rows')
    WHERE set_id = 0;
INSERT INTO waiting (set_id, number)
    SELECT 0, number FROM old_documents WHERE embedded IS NOT digest;
INSERT INTO waiting SELECT set_id, number, texts, digest FROM waiting_queries;
INSERT OR IGNORE INTO waiting (set_id, number) SELECT s.set_id, d.number FROM sets s, documents d
    WHERE json_extract(settings, '$.source') IN ('sentences', 'expanded')
    AND NOT EXISTS (SELECT 1 FROM spans v
        WHERE v.set_id = s.set_id AND v.number = d.number AND v.digest = d.digest);
INSERT INTO neighbors SELECT n.number, CASE WHEN n.row = d.row THEN 0 ELSE -1 END, others,
    similarities FROM old_neighbors n LEFT JOIN old_documents d USING (number);
DELETE FROM sqlite_sequence WHERE name IN ('documents', 'sets');
UPDATE sqlite_sequence SET name = substr(name, 5) WHERE name IN ('old_documents', 'old_sets');
DROP TABLE waiting_queries;
DELETE FROM meta WHERE key = 'rows'
"""


def upgrade(catalog: Path) -> None:
    """Upgrade a catalog of format 1; for the one writer. Vector files stay as they are."""
    with explained(catalog):
        connection = sqlite3.connect(catalog, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            values = dict(connection.execute("SELECT key, value FROM meta"))
            if json.loads(values["format"]) == 1:  # and not upgraded meanwhile
                _from_1(connection, catalog.parent)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        finally:
            connection.close()


def _from_1(connection: sqlite3.Connection, folder: Path) -> None:
    for name in ("empty_documents", "waiting_documents"):
        connection.execute(f"DROP INDEX {name}")
    for name in _MOVED:
        connection.execute(f"ALTER TABLE {name} RENAME TO old_{name}")
    for statement in SCHEMA.split(";\n"):
        for made in ("CREATE TABLE ", "CREATE INDEX "):
            statement = statement.replace(made, f"{made}IF NOT EXISTS ")
        connection.execute(statement)
    for statement in _FROM_1.split(";\n"):
        connection.execute(statement)
    for name in _MOVED:
        connection.execute(f"DROP TABLE old_{name}")
    recount(connection)
    about = dict(connection.execute("SELECT key, value FROM meta"))
    dim = json.loads(about["embedder"])["dim"]
    for set_id, name, dtype, rows in connection.execute(
        "SELECT set_id, name, dtype, rows FROM files"
    ).fetchall():
        path, row = folder / "vectors" / name, row_type(dtype, dim)
        vectors = map_rows(path, min(rows, whole_rows(path, row)), row)
        for at in range(0, len(vectors), _AT_ONCE):
            sums = row_sums(vectors[at : at + _AT_ONCE])
            Ledger.add_sums(connection, set_id, at, sums)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT),))
    connection.execute("INSERT INTO meta VALUES ('log_from', ?)", (about["version"],))
