"""What OpenLineage is told: names of topics and tables, as its naming rules have them, and which
comes from which with how many rows. Functions of plain values; what they return is None where the
OpenLineage provider is not installed, which Airflow takes for "nothing to tell".

Source: OpenLineage, Naming conventions (Kafka: `kafka://host:port`, topic; S3: `s3://bucket`, key;
local file system: `file`, path).
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.sdk import Asset


class DatasetName(NamedTuple):
    """A dataset's name, and the namespace that it is unique in."""

    namespace: str
    name: str


def topic_dataset(topic: str, *, bootstrap_servers: str, path: str) -> DatasetName:
    """Return the name of a topic: as Kafka's clients tell it by their first broker, or where no
    broker is known by the cluster's store, at `path`.
    """
    if bootstrap_servers:
        first = bootstrap_servers.split(",", 1)[0].strip()
        return DatasetName(f"kafka://{first}", topic)
    store = table_dataset(path)
    if store.namespace == "file":
        return DatasetName(f"lakehead://{store.name}", topic)
    return DatasetName(f"{store.namespace.replace('s3:', 'lakehead:')}/{store.name}", topic)


def table_dataset(uri: str) -> DatasetName:
    """Return the name of a table at an URI: `s3://bucket/prefix?options`, `file:/path`, a path."""
    parts = urlsplit(uri)
    if parts.scheme in {"s3", "s3a"}:
        return DatasetName(f"s3://{parts.netloc}", parts.path.strip("/"))
    return DatasetName("file", (parts.path if parts.scheme == "file" else uri).rstrip("/"))


def materialize_lineage(
    *,
    path: str,
    bootstrap_servers: str,
    tables: Mapping[str, str],
    rows: Mapping[str, int],
    bytes_written: Mapping[str, int],
) -> Any:
    """Return the `OperatorLineage` of a run that brought topics into their tables: `tables` are
    the URIs, `rows` and `bytes_written` what was added, by topic. None without OpenLineage.
    """
    inputs = [
        topic_dataset(topic, bootstrap_servers=bootstrap_servers, path=path) for topic in tables
    ]
    outputs = [
        (table_dataset(uri), rows.get(topic), bytes_written.get(topic))
        for topic, uri in tables.items()
    ]
    return _lineage(inputs, outputs)


def backfill_lineage(
    *, path: str, bootstrap_servers: str, topic: str, table: str, rows: int
) -> Any:
    """Return the `OperatorLineage` of a run that added earlier records of a topic to its table, or
    replayed its dead letters. None without OpenLineage.
    """
    source = topic_dataset(topic, bootstrap_servers=bootstrap_servers, path=path)
    return _lineage([source], [(table_dataset(table), rows, None)])


def table_lineage(tables: Sequence[str]) -> Any:
    """Return the `OperatorLineage` of a run that rewrote tables in place (OPTIMIZE, VACUUM): each
    is read and written. None without OpenLineage.
    """
    names = [table_dataset(uri) for uri in tables]
    return _lineage(names, [(name, None, None) for name in names])


def asset_to_openlineage(asset: "Asset", lineage_context: Any) -> Any:
    """Return the dataset of an asset of ours, by the connection that its URI names: what Airflow
    asks for assets that tasks have as inlets and outlets. None for one whose connection, or table,
    is not known.
    """
    del lineage_context
    parts = urlsplit(asset.uri)
    kind, topic = parts.path.strip("/").split("/")[:2]  # a watched one is the same dataset
    from airflow.sdk.exceptions import AirflowFailException

    from connectors.airflow.hooks.lakehead import LakeheadHook
    from storage.errors import LakeheadError
    from storage.metadata.table_declaration import TableDeclaration

    hook = LakeheadHook(parts.netloc)
    try:
        if kind == "topics":
            name = topic_dataset(topic, bootstrap_servers=hook.bootstrap_servers, path=hook.path)
        else:
            state = hook.state().topics.get(topic)
            if state is None:
                return None
            name = table_dataset(TableDeclaration.of(state).uri(hook.path))
    except (LakeheadError, AirflowFailException):
        return None
    return _dataset("Dataset", name)


def _lineage(
    inputs: Sequence[DatasetName], outputs: Sequence[tuple[DatasetName, int | None, int | None]]
) -> Any:
    try:
        extractors = import_module("airflow.providers.openlineage.extractors")
    except ImportError:
        return None
    return extractors.OperatorLineage(
        inputs=[_dataset("InputDataset", name) for name in inputs],
        outputs=[
            _dataset("OutputDataset", name, **_statistics(rows, size))
            for name, rows, size in outputs
        ],
    )


def _dataset(kind: str, name: DatasetName, **facets: Any) -> Any:
    # Without OpenLineage its classes are functions there that return None.
    from airflow.providers.common.compat.openlineage import facet

    return getattr(facet, kind)(namespace=name.namespace, name=name.name, **facets)


def _statistics(rows: int | None, size: int | None) -> dict[str, Any]:
    from airflow.providers.common.compat.openlineage.facet import OutputStatisticsOutputDatasetFacet

    if rows is None and size is None:
        return {}
    facet = OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size)
    return {"outputFacets": {"outputStatistics": facet}}
