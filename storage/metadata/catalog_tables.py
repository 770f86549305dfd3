"""The small tables of a checkpoint: everything but streams and objects, a row per value."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from immutables import Map

from lakehead.storage.format.checkpoint import Columns, rows_of
from lakehead.storage.format.columns import Doubles, Flags, Longs, Texts, Words
from lakehead.storage.metadata.records import AclBinding
from lakehead.storage.metadata.state import (
    ClusterState,
    ControllerState,
    KnownLog,
    LostLog,
    NodeState,
    QuotaEntity,
    ScramCredential,
    TableState,
    TopicState,
    WriterState,
    topic_maps,
)

_json = msgspec.json.encode
_NO_LOSS = LostLog(log_id="", epoch=-1, time_ms=0, streams=0)


class _Credential(msgspec.Struct, frozen=True, kw_only=True):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def catalog_tables(state: ClusterState) -> dict[str, Columns]:
    """Return the tables of what is small in a state."""
    return {
        "cluster": _cluster(state),
        "nodes": _nodes(state),
        "topics": _topics(state),
        "configs": _configs(state),
        "quotas": _quotas(state),
        "acls": {
            "document": Texts.of(sorted(_json(acl, order="sorted").decode() for acl in state.acls))
        },
        "credentials": _credentials(state),
        "writers": _writers(state),
        "tables": _tables(state),
        "table_offsets": _table_offsets(state),
        "features": {
            "name": Texts.of(sorted(state.features)),
            "level": Longs(level for _, level in sorted(state.features.items())),
        },
    }


def _cluster(state: ClusterState) -> Columns:
    return {
        "cluster_id": Texts.of([state.cluster_id]),
        "next_entry": Longs([state.next_entry]),
        "next_stream_id": Longs([state.next_stream_id]),
        "next_producer_id": Longs([state.next_producer_id]),
        "forgotten_entry": Longs([state.forgotten_entry]),
        "node_id": Longs([state.controller.node_id]),
        "node_epoch": Longs([state.controller.node_epoch]),
        "term": Longs([state.controller.term]),
        "features_epoch": Longs([state.features_epoch]),
        "node_secret": Texts.of([state.node_secret]),
    }


def _nodes(state: ClusterState) -> Columns:
    nodes = [state.nodes[node_id] for node_id in sorted(state.nodes)]
    retired = sorted(state.retired_nodes.items())
    blank = [0] * len(retired)
    lost = [node.lost_log or _NO_LOSS for node in nodes]
    return {
        "node_id": Longs([*(node.node_id for node in nodes), *(node for node, _ in retired)]),
        "node_epoch": Longs([*(node.epoch for node in nodes), *(epoch for _, epoch in retired)]),
        "incarnation": Texts.of([*(node.incarnation for node in nodes), *("" for _ in retired)]),
        "host": Texts.of([*(node.host for node in nodes), *("" for _ in retired)]),
        "port": Longs([*(node.port for node in nodes), *blank]),
        "rack": Texts.of([*(node.rack or "" for node in nodes), *("" for _ in retired)]),
        "is_fenced": Flags([*(node.is_fenced for node in nodes), *blank]),
        "is_retired": Flags([*(0 for _ in nodes), *(1 for _ in retired)]),
        "wal_epoch": Longs([*(node.wal_epoch for node in nodes), *blank]),
        "wal_floor": Longs([*(node.wal_floor for node in nodes), *blank]),
        "host_id": Texts.of([*(node.host_id for node in nodes), *("" for _ in retired)]),
        "wal": Texts.of([*(node.wal for node in nodes), *("" for _ in retired)]),
        "process": Texts.of([*(node.process for node in nodes), *("" for _ in retired)]),
        "is_draining": Flags([*(node.is_draining for node in nodes), *blank]),
        "min_level": Longs([*(node.min_level for node in nodes), *blank]),
        "max_level": Longs([*(node.max_level for node in nodes), *blank]),
        "tables": Texts.of([*(node.tables for node in nodes), *("" for _ in retired)]),
        "log_id": Texts.of([*(node.log.log_id for node in nodes), *("" for _ in retired)]),
        "log_epoch": Longs([*(node.log.epoch for node in nodes), *blank]),
        "log_position": Longs([*(node.log.position for node in nodes), *blank]),
        "lost_log_id": Texts.of([*(one.log_id for one in lost), *("" for _ in retired)]),
        "lost_log_epoch": Longs([*(one.epoch for one in lost), *blank]),
        "lost_log_ms": Longs([*(one.time_ms for one in lost), *blank]),
        "lost_log_streams": Longs([*(one.streams for one in lost), *blank]),
    }


def _topics(state: ClusterState) -> Columns:
    topics = [state.topics[name] for name in sorted(state.topics)]
    return {
        "topic": Texts.of(topic.name for topic in topics),
        "topic_id": Texts.of(topic.topic_id for topic in topics),
        "partitions": Texts.of(_json(topic.partitions).decode() for topic in topics),
    }


def _configs(state: ClusterState) -> Columns:
    rows = [
        ("topic", topic.topic_id, name, value)
        for topic in state.topics.values()
        for name, value in topic.configs.items()
    ]
    rows += [
        ("broker", str(node_id), name, value)
        for node_id, configs in state.broker_configs.items()
        for name, value in configs.items()
    ]
    rows += [
        ("group", group, name, value)
        for group, configs in state.group_configs.items()
        for name, value in configs.items()
    ]
    rows.sort()
    return {
        "kind": Words.of(row[0] for row in rows),
        "owner": Texts.of(row[1] for row in rows),
        "name": Texts.of(row[2] for row in rows),
        "value": Texts.of(row[3] for row in rows),
    }


def _quotas(state: ClusterState) -> Columns:
    rows = sorted(
        (_json(entity).decode(), name, value)
        for entity, values in state.quotas.items()
        for name, value in values.items()
    )
    return {
        "owner": Texts.of(row[0] for row in rows),
        "name": Texts.of(row[1] for row in rows),
        "limit": Doubles(row[2] for row in rows),
    }


def _credentials(state: ClusterState) -> Columns:
    rows = sorted(state.scram_credentials.items(), key=lambda item: item[0])
    return {
        "owner": Texts.of(user for (user, _), _ in rows),
        "name": Texts.of(mechanism for (_, mechanism), _ in rows),
        "document": Texts.of(_json(credential).decode() for _, credential in rows),
    }


def _writers(state: ClusterState) -> Columns:
    rows = sorted(state.writers.items())
    return {
        "writer": Texts.of(writer for writer, _ in rows),
        "entry": Longs(last.entry for _, last in rows),
        "nonce": Texts.of(last.nonce for _, last in rows),
    }


def _tables(state: ClusterState) -> Columns:
    rows = sorted(state.tables.items())
    return {
        "topic_id": Texts.of(topic_id for topic_id, _ in rows),
        "owner": Texts.of(table.holder for _, table in rows),
        "term": Longs(table.term for _, table in rows),
        "until_ms": Longs(table.until_ms for _, table in rows),
        "problem": Texts.of(table.problem for _, table in rows),
    }


def _table_offsets(state: ClusterState) -> Columns:
    rows = [
        (topic_id, partition, offset)
        for topic_id, table in sorted(state.tables.items())
        for partition, offset in enumerate(table.offsets)
    ]
    return {
        "topic_id": Texts.of(row[0] for row in rows),
        "partition": Longs(row[1] for row in rows),
        "end_offset": Longs(row[2] for row in rows),
    }


class _Row(NamedTuple):
    """A row of a table, by name of column."""

    columns: Columns
    number: int

    def __getattr__(self, name: str) -> Any:
        return self.columns[name][self.number]

    def get(self, name: str, default: Any) -> Any:
        """Return the value of a column that older checkpoints do not have."""
        return self.columns[name][self.number] if name in self.columns else default


def _rows(tables: Mapping[str, Columns], name: str) -> list[_Row]:
    columns = tables.get(name, {})
    return [_Row(columns, number) for number in range(rows_of(columns))]


def catalog_state(tables: Mapping[str, Columns]) -> ClusterState:
    """Return a state without streams and objects. Raises KeyError, msgspec.DecodeError."""
    (cluster,) = _rows(tables, "cluster")
    nodes = _rows(tables, "nodes")
    configs = _configs_of(tables)
    topics = [_topic(row, configs) for row in _rows(tables, "topics")]
    return ClusterState(
        next_entry=cluster.next_entry,
        cluster_id=cluster.cluster_id,
        nodes=Map({row.node_id: _node(row) for row in nodes if not row.is_retired}),
        retired_nodes=Map({row.node_id: row.node_epoch for row in nodes if row.is_retired}),
        **topic_maps(topics),
        broker_configs=Map(
            {
                int(owner): Map(values)
                for (kind, owner), values in configs.items()
                if kind == "broker"
            }
        ),
        group_configs=Map(
            {owner: Map(values) for (kind, owner), values in configs.items() if kind == "group"}
        ),
        controller=ControllerState(
            node_id=cluster.node_id, node_epoch=cluster.node_epoch, term=cluster.term
        ),
        quotas=_quotas_of(tables),
        acls=Map(
            {
                msgspec.json.decode(row.document, type=AclBinding): True
                for row in _rows(tables, "acls")
            }
        ),
        scram_credentials=Map(
            {
                (row.owner, row.name): _credential(row.document)
                for row in _rows(tables, "credentials")
            }
        ),
        next_stream_id=cluster.next_stream_id,
        next_producer_id=cluster.next_producer_id,
        writers=Map(
            {
                row.writer: WriterState(entry=row.entry, nonce=row.nonce)
                for row in _rows(tables, "writers")
            }
        ),
        forgotten_entry=cluster.forgotten_entry,
        tables=_tables_of(tables),
        features=Map({row.name: row.level for row in _rows(tables, "features")}),
        features_epoch=cluster.get("features_epoch", 0),
        node_secret=cluster.get("node_secret", ""),
    )


def _tables_of(tables: Mapping[str, Columns]) -> Map[str, TableState]:
    offsets: dict[str, list[int]] = {}
    for row in _rows(tables, "table_offsets"):
        offsets.setdefault(row.topic_id, []).append(row.end_offset)
    return Map(
        {
            row.topic_id: TableState(
                holder=row.owner,
                term=row.term,
                until_ms=row.until_ms,
                offsets=tuple(offsets.get(row.topic_id, ())),
                problem=row.get("problem", ""),
            )
            for row in _rows(tables, "tables")
        }
    )


def _lost_log(row: _Row) -> LostLog | None:
    log_id = row.get("lost_log_id", "")
    if not log_id:
        return None
    return LostLog(
        log_id=log_id,
        epoch=row.lost_log_epoch,
        time_ms=row.lost_log_ms,
        streams=row.lost_log_streams,
    )


def _node(row: _Row) -> NodeState:
    return NodeState(
        node_id=row.node_id,
        epoch=row.node_epoch,
        incarnation=row.incarnation,
        host=row.host,
        port=row.port,
        rack=row.rack or None,
        is_fenced=row.is_fenced,
        wal_epoch=row.wal_epoch,
        wal_floor=row.wal_floor,
        host_id=row.get("host_id", ""),
        wal=row.get("wal", ""),
        process=row.get("process", ""),
        is_draining=row.get("is_draining", False),
        min_level=row.get("min_level", 0),
        max_level=row.get("max_level", 0),
        tables=row.get("tables", ""),
        log=KnownLog(
            log_id=row.get("log_id", ""),
            epoch=row.get("log_epoch", -1),
            position=row.get("log_position", -1),
        ),
        lost_log=_lost_log(row),
    )


def _topic(row: _Row, configs: Mapping[tuple[str, str], Mapping[str, str]]) -> TopicState:
    return TopicState(
        name=row.topic,
        topic_id=row.topic_id,
        partitions=msgspec.json.decode(row.partitions, type=tuple[int, ...]),
        configs=Map(configs.get(("topic", row.topic_id), {})),
    )


def _configs_of(tables: Mapping[str, Columns]) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in _rows(tables, "configs"):
        found.setdefault((row.kind, row.owner), {})[row.name] = row.value
    return found


def _quotas_of(tables: Mapping[str, Columns]) -> Map[QuotaEntity, Map[str, float]]:
    found: dict[QuotaEntity, dict[str, float]] = {}
    for row in _rows(tables, "quotas"):
        entity = msgspec.json.decode(row.owner, type=QuotaEntity)
        found.setdefault(entity, {})[row.name] = row.limit
    return Map({entity: Map(values) for entity, values in found.items()})


def _credential(document: str) -> ScramCredential:
    known = msgspec.json.decode(document, type=_Credential)
    return ScramCredential(
        salt=known.salt,
        stored_key=known.stored_key,
        server_key=known.server_key,
        iterations=known.iterations,
    )
