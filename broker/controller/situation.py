"""What a plan is made from, besides the cluster's state."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehead.broker.cluster.heartbeat import NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The cluster as node `node_id` in its epoch sees it at one moment.

    `ready` are the nodes that serve, this one included, and `settled` those that have for a while;
    `leaving` are about to stop; `dead` are epochs by node id. `is_neglected`: somebody has been
    dead for a session and is not fenced, so whoever holds the lease does not do its work.
    `may_lead`: the lease has been vacant for so long that it is this node's turn to take it.
    `is_balance_due`: leadership may be moved for the sake of balance now, if some node is further
    than `imbalance` (a share: 0.1) from the average.
    """

    node_id: int
    node_epoch: int
    ready: frozenset[int]
    settled: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    dead: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, NodeLoad] = field(default_factory=dict)
    is_neglected: bool = False
    may_lead: bool = False
    is_balance_due: bool = False
    imbalance: float = 0.1
