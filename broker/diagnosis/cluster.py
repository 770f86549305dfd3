"""A cluster as its metadata and the responses of its nodes show it."""

from collections import Counter
from collections.abc import Collection

from lakehead.broker.diagnosis.finding import Finding, failed, ok, warning
from lakehead.broker.features import features
from lakehead.storage.format.feature_level import METADATA_VERSION
from lakehead.storage.metadata.state import MetadataImage

_NAMED = 5
"""Of more things than this, the first are named and the others counted."""


def judge_cluster(state: MetadataImage, responding: Collection[int] | None) -> list[Finding]:
    """Judge nodes, partitions, tables and the feature level. `responding`: ids of the nodes that
    responded to a heartbeat; None: heartbeats cannot be sent from here.
    """
    return [
        _nodes(state, responding),
        _partitions(state, responding),
        *_logs(state),
        *_tables(state),
        _level(state),
    ]


def _nodes(state: MetadataImage, responding: Collection[int] | None) -> Finding:
    live = state.live_node_ids
    if not live:
        return warning("nodes", "none is live", "start one: lakehead start")
    if responding is None:
        found = f"{len(live)} are live in the metadata; they talk by TLS"
        return warning("nodes", found, "name a client's certificate by --command-config")
    silent = sorted(live - set(responding))
    found = f"{len(live) - len(silent)} of {len(live)} respond"
    if fenced := sorted(set(state.nodes) - live):
        found += f"; fenced: node {_listed(fenced)}"
    if silent:
        return warning("nodes", found, f"look at the logs of node {_listed(silent)}")
    return ok("nodes", found)


def _partitions(state: MetadataImage, responding: Collection[int] | None) -> Finding:
    led, unled = 0, []
    live = state.live_node_ids
    for stream in state.streams.values():
        if stream.is_open and stream.node_id in (live if responding is None else responding):
            led += 1
        else:
            topic = state.topic_by_id(stream.topic_id)
            unled.append(f"{topic.name if topic else stream.topic_id}-{stream.partition}")
    words = "is live in the metadata" if responding is None else "responds"
    found = f"{led} of {len(state.streams)} have a leader that {words}"
    if unled and (responding or responding is None):
        advice = f"lakehead why {min(unled)} says why ({_listed(sorted(unled))})"
        return failed("partitions", found, advice)
    return ok("partitions", found)


def _logs(state: MetadataImage) -> list[Finding]:
    """Judge the logs of nodes that have ended, and were not recovered."""
    waiting = Counter(stream.node_id for stream in state.streams.values() if stream.is_open)
    findings = []
    for node in state.nodes.values():
        if node.is_fenced and not node.is_recovered and waiting[node.node_id]:
            found = f"{waiting[node.node_id]} partitions wait for the log of node {node.node_id}"
            advice = f"start a node on its machine {node.host_id or '(not known)'}"
            findings.append(failed("recovery", found, advice))
    return findings


def _tables(state: MetadataImage) -> list[Finding]:
    troubles = {}
    for topic_id, table in state.tables.items():
        topic = state.topic_by_id(topic_id)
        if topic is not None and topic.declares_table and table.problem:
            troubles[topic.name] = table.problem
    declared = sum(topic.declares_table for topic in state.topics.values())
    if not declared:
        return []
    found = f"{declared - len(troubles)} of {declared} are written without a problem"
    if not troubles:
        return [ok("tables", found)]
    name, problem = min(troubles.items())
    return [warning("tables", found, f"{name}: {problem}; see: lakehead tables")]


def _level(state: MetadataImage) -> Finding:
    feature = features(state)[METADATA_VERSION]
    found = f"{feature.level}"
    if feature.level < feature.most:
        advice = "once every node has this release: lakehead features upgrade"
        return warning("feature level", f"{found}, this release has {feature.most}", advice)
    return ok("feature level", found)


def _listed(names: Collection[object]) -> str:
    shown = ", ".join(str(name) for name in list(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
