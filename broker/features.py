"""Cluster features as Kafka versions them (KIP-584): what ApiVersions lists and UpdateFeatures
changes.

`metadata.version` is the feature level of the cluster: which records of the metadata may be written
(`lakehead.storage.metadata.additions`). Its numbers are Lakehead's own. `transaction.version` says
how clients take part in transactions, `group.version` that there are consumer groups (KIP-848),
`share.version` that there are share groups (KIP-932) with dead letters (KIP-1191); these stay at
the level of the release.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from lakehead.storage.errors import SettingsError
from lakehead.storage.format.feature_level import LOWEST_LEVEL, METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata.records import FeatureLevel, NodeSecret, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature with the levels that this release knows, and the one in force (0: none)."""

    least: int
    most: int
    level: int


Levels = tuple[int, int]
"""The lowest and the highest feature level that a release supports."""


def features(state: MetadataImage) -> Mapping[str, Feature]:
    """Return every feature, by name."""
    level = state.metadata_version
    return {
        METADATA_VERSION: Feature(least=LOWEST_LEVEL, most=NEWEST_LEVEL, level=level),
        "group.version": Feature(least=0, most=1, level=1),
        "share.version": Feature(least=0, most=2, level=2),
        "transaction.version": Feature(least=0, most=2, level=2),
    }


def supported(node: NodeState, heard: Mapping[int, Levels]) -> Levels | None:
    """Return the levels that a node supports: as it registered them or, where the level in force
    has no field for that, as its heartbeats say (`heard`). None: it did not say.
    """
    return (node.min_level, node.max_level) if node.max_level else heard.get(node.node_id)


def raised(
    state: MetadataImage, level: int, heard: Mapping[int, Levels], rng: random.Random
) -> list[Record]:
    """Return the records that raise the feature level, and give the cluster what it needs there.

    Raises SettingsError while a live node does not support it, or did not say so: it would stop.
    """
    for node in state.nodes.values():
        if node.is_fenced:
            continue
        levels = supported(node, heard)
        if levels is None:
            raise SettingsError(
                f"Broker {node.node_id} does not say which versions it supports: start it with "
                "this release, or unregister it when it is gone."
            )
        if not levels[0] <= level <= levels[1]:
            raise SettingsError(
                f"Broker {node.node_id} only supports versions {levels[0]}-{levels[1]}: start it "
                "with a release that supports more."
            )
    secret = NodeSecret(secret=f"{rng.getrandbits(256):064x}")
    raised = FeatureLevel(name=METADATA_VERSION, level=level)
    return [raised] if state.node_secret else [raised, secret]
