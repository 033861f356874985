"""What a publisher makes in PostgreSQL: tables, and a function that searches without strop."""

from __future__ import annotations

TABLES = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE IF NOT EXISTS {documents} (number bigint PRIMARY KEY, id text NOT NULL UNIQUE,"
    " stamp text NOT NULL, title text NOT NULL, text text NOT NULL, raw text,"
    " metadata json NOT NULL, queries json NOT NULL, packed bytea NOT NULL)",
    "ALTER TABLE {documents} ALTER packed SET STORAGE EXTERNAL",
    "CREATE TABLE IF NOT EXISTS {rows} (number bigint NOT NULL, own boolean NOT NULL,"
    " vector halfvec(DIM) NOT NULL)",
    "CREATE INDEX IF NOT EXISTS {numbers_index} ON {rows} (number)",
    "CREATE TABLE IF NOT EXISTS {facts} (field bytea NOT NULL, kind smallint NOT NULL,"
    " value bytea NOT NULL, number bigint NOT NULL,"
    " PRIMARY KEY (field, kind, value, number))",
    "CREATE INDEX IF NOT EXISTS {facts_index} ON {facts} (number)",
    'CREATE TABLE IF NOT EXISTS {pieces} (name text COLLATE "C" PRIMARY KEY,'
    " content bytea NOT NULL)",
)
FUNCTION = ""
