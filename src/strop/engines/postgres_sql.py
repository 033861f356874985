"""SQL that creates a copy in PostgreSQL: tables, and a function that searches without strop."""

from __future__ import annotations

TABLES = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE IF NOT EXISTS {documents} (number bigint PRIMARY KEY, id text NOT NULL UNIQUE,"
    " stamp text NOT NULL, title text NOT NULL, text text NOT NULL, raw text,"
    " metadata json NOT NULL, queries json NOT NULL, packed bytea NOT NULL)",
    "ALTER TABLE {documents} ALTER packed SET STORAGE MAIN",
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
_FUNCTION = """
CREATE OR REPLACE FUNCTION {search}(query halfvec, k integer DEFAULT 10,
    alpha double precision DEFAULT 1, temperature double precision DEFAULT 0.1,
    nearest integer DEFAULT 150)
RETURNS TABLE (id text, score double precision, title text, text text, metadata json)
LANGUAGE sql STABLE AS $$
    WITH proposed AS (
        SELECT DISTINCT number FROM (
            SELECT number FROM {rows} ORDER BY vector <#> $1 LIMIT $5) AS near
    ), fetched AS (
        SELECT number, own, vector, -(vector <#> $1) AS similarity,
            max(-(vector <#> $1)) FILTER (WHERE NOT own) OVER (PARTITION BY number) AS peak
        FROM {rows} JOIN proposed USING (number)
    ), weighted AS (
        SELECT number, own, vector,
            CASE WHEN NOT own THEN exp((similarity - peak) / $4) ELSE 0 END AS weight
        FROM fetched
    ), built AS (
        SELECT number, sum(vector::vector * array_fill((CASE WHEN own THEN 1
            ELSE $3 * weight / total END)::real, ARRAY[vector_dims(vector)])::vector) AS sharpened
        FROM (SELECT *, sum(weight) OVER (PARTITION BY number) AS total FROM weighted) AS one
        GROUP BY number
    )
    SELECT d.id, -(sharpened <#> $1::vector) / vector_norm(sharpened), d.title, d.text, d.metadata
    FROM built JOIN {documents} AS d USING (number)
    WHERE vector_norm(sharpened) > 0
    ORDER BY 2 DESC, number LIMIT $2
$$
"""
"""Lines (1) to (4) of search/formula.py in one query, for programs without strop."""
PREPARE = (
    "SET LOCAL maintenance_work_mem = '256MB'",
    "CREATE INDEX IF NOT EXISTS {rows_index} ON {rows} USING hnsw (vector halfvec_ip_ops)",
    "CREATE INDEX IF NOT EXISTS {own_index} ON {rows} USING hnsw (vector halfvec_ip_ops) WHERE own",
    _FUNCTION,
    "ANALYZE {documents}",
    "ANALYZE {rows}",
)
