"""Counts and times for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The folder where several processes keep their counts; set before this file is imported."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counts of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "strop_requests", "Requests.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "strop_request_seconds", "Time of requests.", ["route"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._stages = Histogram(
            "strop_stage_seconds", "Time of a request's stages.", ["stage"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._batches = Histogram(
            "strop_batch_queries", "Queries searched together.", buckets=_SIZES, registry=registry
        )
        # Of several processes the latest value: the index is the same.
        self._documents = Gauge(
            "strop_documents", "Documents in the collection.",
            registry=registry, multiprocess_mode="mostrecent",
        )  # fmt: skip
        self._version = Gauge(
            "strop_index_version", "Commits to the index so far.",
            registry=registry, multiprocess_mode="mostrecent",
        )  # fmt: skip

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the pattern, not the path: paths have no end."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def observe(self, stage: str, value: float) -> None:
        """Record a stage's seconds, or the queries of a batch."""
        if stage == "batch":
            self._batches.observe(value)
        else:
            self._stages.labels(stage).observe(value)

    def text(self, documents: int, version: int) -> bytes:
        """Return everything in the text format of Prometheus."""
        self._documents.set(documents)
        self._version.set(version)
        registry = self._registry
        if os.environ.get(SHARED):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
