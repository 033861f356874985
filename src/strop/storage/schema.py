"""The catalog's tables. A change of what is stored needs a new format number."""

from __future__ import annotations

from strop.storage.words import WORD_TABLES

FORMAT = 6
"""A catalog of another format is refused: there is nothing to upgrade from."""

SCHEMA = (
    """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    digest   BLOB NOT NULL,
    empty    INTEGER NOT NULL,
    title    TEXT NOT NULL,
    text     TEXT NOT NULL,
    metadata TEXT NOT NULL
);
CREATE INDEX empty_documents ON documents (number) WHERE empty;
CREATE TABLE wholes (
    whole  INTEGER PRIMARY KEY AUTOINCREMENT,
    id     TEXT NOT NULL UNIQUE,
    title  TEXT NOT NULL,
    digest BLOB NOT NULL,
    named  INTEGER NOT NULL
);
CREATE TABLE chunks (
    number   INTEGER PRIMARY KEY,
    whole    INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    behind   INTEGER NOT NULL,
    headings TEXT NOT NULL
);
CREATE INDEX chunks_of_wholes ON chunks (whole, start);
CREATE TABLE manifest (
    id       TEXT PRIMARY KEY,
    folder   TEXT NOT NULL,
    size     INTEGER NOT NULL,
    modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE fields (field INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE);
CREATE TABLE facets (
    field  INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    value  NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (field, kind, value, number)
) WITHOUT ROWID;
CREATE TABLE sets (
    set_id   INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL
);
CREATE TABLE queries (
    set_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    texts  TEXT NOT NULL,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE TABLE waiting (
    set_id  INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    texts   TEXT,
    digest  BLOB,
    refused TEXT,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE TABLE files (
    set_id INTEGER PRIMARY KEY,
    name   TEXT NOT NULL,
    dtype  TEXT NOT NULL,
    rows   INTEGER NOT NULL DEFAULT 0,
    live   INTEGER NOT NULL DEFAULT 0,
    lists  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE checksums (
    set_id INTEGER NOT NULL,
    block  INTEGER NOT NULL,
    sums   BLOB NOT NULL,
    PRIMARY KEY (set_id, block)
) WITHOUT ROWID;
CREATE TABLE spans (
    set_id         INTEGER NOT NULL,
    number         INTEGER NOT NULL,
    start          INTEGER NOT NULL,
    count          INTEGER NOT NULL,
    vector_version INTEGER NOT NULL,
    digest         BLOB NOT NULL,
    older          INTEGER NOT NULL,
    PRIMARY KEY (set_id, number)
) WITHOUT ROWID;
CREATE INDEX older_spans ON spans (set_id, number) WHERE older;
CREATE TABLE changes (
    version INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    PRIMARY KEY (version, first)
) WITHOUT ROWID;
CREATE TABLE neighbors (
    number         INTEGER PRIMARY KEY,
    vector_version INTEGER NOT NULL,
    others         BLOB,
    similarities   BLOB
);
CREATE TABLE selections (
    number       INTEGER PRIMARY KEY,
    others       BLOB NOT NULL,
    similarities BLOB NOT NULL,
    sizes        BLOB NOT NULL,
    silhouette   REAL NOT NULL
);
CREATE TABLE replies (
    key           TEXT PRIMARY KEY,
    number        INTEGER NOT NULL,
    lm            TEXT NOT NULL,
    options       TEXT NOT NULL,
    settings      TEXT NOT NULL,
    model         TEXT NOT NULL,
    text          TEXT NOT NULL,
    truncated     INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    seconds       REAL NOT NULL,
    created       TEXT NOT NULL
);
CREATE TABLE failures (
    key     TEXT PRIMARY KEY,
    number  INTEGER NOT NULL,
    error   TEXT NOT NULL,
    final   INTEGER NOT NULL,
    created TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE batches (
    id         TEXT PRIMARY KEY,
    provenance TEXT NOT NULL,
    requests   INTEGER NOT NULL,
    submitted  TEXT NOT NULL,
    collected  TEXT
) WITHOUT ROWID;
CREATE TABLE sent (
    name   TEXT PRIMARY KEY,
    key    TEXT NOT NULL,
    number INTEGER NOT NULL,
    batch  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sent_keys ON sent (key);
INSERT INTO files (set_id, name, dtype) VALUES (0, 'documents.f32', 'float32');
"""
    + WORD_TABLES
)
