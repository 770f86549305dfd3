"""The rules of feature levels: when the level in force may be raised; and of the secret that one of
them brought.
"""

import re
from dataclasses import replace

from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.demands import require
from lakehead.storage.metadata.state import ClusterState

_SECRET = re.compile("[0-9a-f]{64}")


def node_secret(state: ClusterState, record: r.NodeSecret, _: int) -> ClusterState:
    """Give the cluster a secret of its nodes, instead of any that it had."""
    is_secret = _SECRET.fullmatch(record.secret) is not None
    require(is_secret, "a secret of nodes is 64 hexadecimal digits")
    return replace(state, node_secret=record.secret)


def feature_level(state: ClusterState, record: r.FeatureLevel, _: int) -> ClusterState:
    """Raise the level of a feature. No live node may be registered as not supporting it."""
    require(record.name == METADATA_VERSION, f"no feature {record.name}")
    now = state.features.get(record.name, BASE_LEVEL)
    require(record.level > now, f"{record.name} is at level {now}: it is not to be {record.level}")
    for node in state.nodes.values():
        require(
            node.is_fenced or not node.max_level or node.supports(record.level),
            f"node {node.node_id} supports levels {node.min_level} to {node.max_level} of "
            f"{record.name}, not {record.level}",
        )
    return replace(
        state,
        features=state.features.set(record.name, record.level),
        features_epoch=state.next_entry,
    )
