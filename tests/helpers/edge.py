"""Qdrant's own engine inside this process (qdrant-edge-py), behind the calls of qdrant-client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge

from strop.engines.qdrant import EF


def install() -> None:
    """Make QdrantClient open folders with the engine and not in its local mode."""
    import qdrant_client

    setattr(qdrant_client, "QdrantClient", EdgeClient)  # noqa: B010


class EdgeClient:
    """Collections in a folder; the part of ``QdrantClient`` that strop calls."""

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        self._shards: dict[str, Any] = {}

    def _shard(self, name: str) -> Any:
        if name not in self._shards:
            if not self.collection_exists(name):
                raise ValueError(f"Collection {name} not found")
            self._shards[name] = edge.EdgeShard.load(str(self._folder / name))
        return self._shards[name]

    def close(self) -> None:
        for shard in self._shards.values():
            shard.optimize()  # builds the graphs; a server does it in the background
            shard.close()
        self._shards = {}

    def collection_exists(self, name: str) -> bool:
        return (self._folder / name).is_dir()

    def create_collection(self, name: str, vectors_config: Any) -> None:
        vectors = {
            key: edge.EdgeVectorParams(
                params.size,
                edge.Distance.Dot,
                datatype=edge.VectorStorageDatatype.Float16,
                quantization_config=_int8(params.quantization_config),
            )
            for key, params in vectors_config.items()
        }
        placeholder = {} if vectors else {"none": edge.EdgeSparseVectorParams()}
        (self._folder / name).mkdir(parents=True)
        optimizers = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1000)
        config = edge.EdgeConfig(vectors, placeholder, optimizers=optimizers)
        self._shards[name] = edge.EdgeShard.create(str(self._folder / name), config)

    def create_payload_index(self, name: str, key: str, kind: Any) -> None:
        make = edge.UpdateOperation.create_field_index
        kinds = edge.PayloadSchemaType
        self._shard(name).update(make(key, kinds.Integer if kind == "integer" else kinds.Keyword))

    def upsert(self, name: str, points: Any, wait: bool) -> None:
        edge_points = [edge.Point(point.id, point.vector, point.payload) for point in points]
        self._shard(name).update(edge.UpdateOperation.upsert_points(edge_points))
        self._shard(name).flush()

    def delete(self, name: str, selector: Any, wait: bool) -> None:
        self._shard(name).update(edge.UpdateOperation.delete_points(selector.points))
        self._shard(name).flush()

    def retrieve(self, name: str, ids: list[Any], with_payload: Any) -> list[Any]:
        return list(self._shard(name).retrieve(ids, with_payload, False))

    def scroll(
        self, name: str, filter_: Any = None, *, limit: int, offset: Any, with_payload: Any
    ) -> Any:
        request = edge.ScrollRequest(offset, limit, _filter(filter_), with_payload, False)
        return self._shard(name).scroll(request)

    def query_points(
        self, name: str, *, query: Any, using: str, limit: int, query_filter: Any,
        search_params: Any, with_payload: Any,
    ) -> Any:  # fmt: skip
        request = edge.QueryRequest(
            limit, query=edge.Query.Nearest(query, using), with_payload=with_payload,
            filter=_filter(query_filter), params=edge.SearchParams(max(limit, EF[using])),
        )  # fmt: skip
        return SimpleNamespace(points=self._shard(name).query(request))


def _int8(config: Any) -> Any:
    scalar = config.scalar
    return edge.ScalarQuantizationConfig(edge.ScalarType.Int8, scalar.quantile, scalar.always_ram)


def _filter(query_filter: Any) -> Any:
    if query_filter is None:
        return None
    conditions: list[Any] = [
        edge.HasIdCondition(set(condition.has_id))
        if hasattr(condition, "has_id")
        else edge.FieldCondition(condition.key, match=edge.MatchAny(list(condition.match.any)))
        for condition in query_filter.must
    ]
    return edge.Filter(must=conditions)
