"""Lineage for OpenLineage: a table comes from a topic, a connector's topic from its source.

Datasets of topics and tables are named by OpenLineage's rules, and lineage between them has the
number of rows. These are functions of plain values. They return None where the OpenLineage provider
is not installed.

Source: OpenLineage, Naming conventions (Kafka: `kafka://host:port`, topic; S3: `s3://bucket`, key;
local file system: `file`, path).
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from lakehead.connectors.settings import ConnectorSettings


class DatasetName(NamedTuple):
    """A dataset's name, and the namespace that it is unique in."""

    namespace: str
    name: str


def topic_dataset(topic: str, *, bootstrap_servers: str, path: str) -> DatasetName:
    """Return the name of a topic: by the first broker, as Kafka's clients name it, or without a
    broker by the cluster's store, at `path`.
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


def has_openlineage() -> bool:
    """Return whether Airflow's provider of OpenLineage is installed."""
    return find_spec("airflow.providers.openlineage") is not None


def table_lineage(
    *,
    path: str,
    bootstrap_servers: str,
    tables: Mapping[str, str],
    rows: Mapping[str, int],
    bytes_written: Mapping[str, int],
) -> Any:
    """Return the `OperatorLineage` of a run that brought topics into their tables: `tables` are
    the URIs, `rows` and `bytes_written` the rows and bytes that were added, by topic. None without
    OpenLineage.
    """
    inputs = [
        topic_dataset(topic, bootstrap_servers=bootstrap_servers, path=path) for topic in tables
    ]
    outputs = [
        (table_dataset(uri), rows.get(topic), bytes_written.get(topic))
        for topic, uri in tables.items()
    ]
    return _lineage(inputs, outputs)


def connector_lineage(
    settings: "ConnectorSettings", *, bootstrap_servers: str, records: int
) -> Any:
    """Return the `OperatorLineage` of a run of a connector: its files, its Delta table or its
    topics become a topic of the cluster at `bootstrap_servers`, unless the sink names another one.
    `records` is what came; of several topics the output has no number. None without OpenLineage.
    """
    from lakehead.connectors.runtime.settings import dotted
    from lakehead.connectors.settings import TopicsSettings

    def topic_of(name: str, servers: str) -> DatasetName:
        return topic_dataset(name, bootstrap_servers=servers, path="")

    source, sink = settings.source, settings.sink
    if not isinstance(source, TopicsSettings):
        written = topic_of(sink.topic, bootstrap_servers)
        return _lineage([table_dataset(source.path)], [(written, records, None)])
    theirs = str(dotted(sink.kafka, "sink.kafka").get("bootstrap.servers", bootstrap_servers))
    targets = [topic_of(sink.topic.replace("{topic}", topic), theirs) for topic in source.topics]
    rows = records if len(targets) == 1 else None
    return _lineage(
        [topic_of(topic, bootstrap_servers) for topic in source.topics],
        [(target, rows, None) for target in dict.fromkeys(targets)],
    )


def asset_to_openlineage(asset: "Asset", lineage_context: Any) -> Any:
    """Return the dataset of an asset of ours, by the connection that its URI names. Airflow calls
    this for inlets and outlets of tasks. None for one whose connection, or table, is not known.
    """
    del lineage_context
    parts = urlsplit(asset.uri)
    kind, topic = parts.path.strip("/").split("/")[:2]  # a watched one is the same dataset
    from airflow.providers.common.compat.sdk import AirflowException

    from lakehead.connectors.airflow.hooks import LakeheadHook
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.storage.errors import LakeheadError

    hook = LakeheadHook(parts.netloc)
    try:
        if kind == "topics":
            name = topic_dataset(topic, bootstrap_servers=hook.bootstrap_servers, path=hook.path)
        else:
            state = hook.state().topics.get(topic)
            if state is None:
                return None
            tables = TableDeclaration.each_of(state)
            if len(tables) > 1:
                return None  # the asset is of them all
            name = table_dataset(tables[0].uri(hook.path))
    except (LakeheadError, AirflowException):
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
