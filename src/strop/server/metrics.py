"""Counts and times for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The folder where several processes keep their counts; set before this file is imported."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_REGISTRY = CollectorRegistry()
REQUESTS = Counter("strop_requests", "Requests.", ["method", "route", "status"], registry=_REGISTRY)
REQUEST_SECONDS = Histogram(
    "strop_request_seconds", "Time of requests.", ["route"], buckets=_SECONDS, registry=_REGISTRY
)
STAGE_SECONDS = Histogram(
    "strop_stage_seconds", "Time of stages.", ["stage"], buckets=_SECONDS, registry=_REGISTRY
)
BATCH_QUERIES = Histogram(
    "strop_batch_queries", "Queries searched together.", buckets=_SIZES, registry=_REGISTRY
)
# Of several processes the latest value counts: they serve the same index.
DOCUMENTS = Gauge(
    "strop_documents", "Documents.", registry=_REGISTRY, multiprocess_mode="mostrecent"
)
VERSION = Gauge(
    "strop_index_version", "Commits so far.", registry=_REGISTRY, multiprocess_mode="mostrecent"
)


def text() -> bytes:
    """Return everything in the text format of Prometheus."""
    registry = _REGISTRY
    if os.environ.get(SHARED):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
