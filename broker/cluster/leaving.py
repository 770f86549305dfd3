"""A clean leave: what a node leads is led by others before it stops."""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Protocol

import structlog

from lakehead.broker.cluster.peers import Peers
from lakehead.storage.clock import Clock
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DrainNode, Record
from lakehead.storage.metadata.state import ClusterState

_POLL_S = 0.1
_log = structlog.get_logger("broker.cluster")


class Leads(Protocol):
    """What a node leads: `lakehead.broker.catalog.leadership.Leadership`."""

    @property
    def held(self) -> Collection[int]: ...

    async def wait(self) -> None:
        """Wait until that, or anything else about streams, has changed."""


async def hand_over_all(peers: Peers, metadata: MetadataLog, leads: Leads, clock: Clock) -> None:
    """Tell the cluster that this node leaves; return when it leads nothing, or nobody is left who
    could lead it: all others are leaving too, or gone. The caller bounds the time.
    """
    peers.leave()
    if not (leads.held and heirs(peers, metadata.state)):
        return
    began, before = clock.monotonic(), len(leads.held)
    own = peers.own

    def plan(state: ClusterState) -> list[Record]:
        if not heirs(peers, state) or state.nodes[own.node_id].is_draining:
            return []
        return [DrainNode(node_id=own.node_id, epoch=own.epoch, is_draining=True)]

    try:
        await metadata.commit_with(plan)
        while leads.held and heirs(peers, metadata.state):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await leads.wait()
    except StorageError as error:
        _log.warning("not_handed_over", node_id=own.node_id, reason=str(error))
    finally:
        _log.info(
            "leaderships_handed_over",
            node_id=own.node_id,
            partitions=before - len(leads.held),
            left=len(leads.held),
            seconds=round(clock.monotonic() - began, 3),
        )


def heirs(peers: Peers, state: ClusterState) -> list[int]:
    """Return the other nodes that serve and are to go on; none once this one is fenced."""
    own = state.nodes.get(peers.own.node_id)
    if own is None or own.is_fenced or own.epoch != peers.own.epoch:
        return []
    return [
        node_id
        for node_id in peers.view().ready
        if (known := state.nodes.get(node_id)) is not None
        and not known.is_fenced
        and not known.is_draining
    ]
