"""Unrecovered WALs: find the logs of fenced nodes that a node can reach, open them, and give their
volumes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.event_logger import event_logger
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.wal.address import open_wal, take_wal
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.block_takeover import Verdict
from lakehead.storage.wal.ebs import exclusive_volume, hand_back, may_have
from lakehead.storage.wal.holder import Holder, HostProcesses, Processes
from lakehead.storage.wal.protocol import WalOwner, WriteAheadLog

if TYPE_CHECKING:
    from lakehead.storage.stream.engine import StreamEngine

_log = event_logger("storage.takeover")

_IN_CLUSTER = ("object:", "memory:")
"""Nothing is left elsewhere: everything is in the cluster's store, or gone with its process."""
_START_S = 5.0
"""A node that was started again has registered after so long, or hangs."""


def reaches(survivor: NodeState, dead: NodeState) -> bool:
    """Return true if a node can recover the log of another: one in the cluster's store from
    anywhere, a block log inside its host, one in another store if it has its own there.
    """
    return dead.wal in _IN_CLUSTER or _reaches(survivor.wal, survivor.host_id, dead)


def may_reach_device(state: MetadataImage, survivor: NodeState, dead: NodeState) -> bool:
    """Return true if a node may try to recover a block log of another host: one on a device, which
    both may have attached, of a host on which no node lives any more. The device's reservation
    fences all of that host; an EBS volume that one instance can have is fenced by being attached
    here.
    """
    return (
        (dead.wal.startswith("block:/dev/") or may_have(survivor.wal, dead.wal))
        and bool(dead.host_id)
        and survivor.host_id not in {"", dead.host_id}
        and all(node.is_fenced for node in state.nodes.values() if node.host_id == dead.host_id)
    )


def _reaches(wal: str, host_id: str, dead: NodeState) -> bool:
    if dead.wal.startswith("block:"):
        return bool(dead.host_id) and host_id == dead.host_id
    return bool(dead.wal) and wal == dead.wal


def is_to_give_back(state: MetadataImage, survivor: NodeState, dead: NodeState) -> bool:
    """Return true if a volume that only one instance can have is of no more use to the host of a
    survivor: another host's nodes left it, and all that they acknowledged there is elsewhere too.
    """
    volume_id = exclusive_volume(dead.wal)
    if not volume_id:
        return False
    users = [node for node in state.nodes.values() if exclusive_volume(node.wal) == volume_id]
    open_by = {stream.node_id for stream in state.streams.values() if stream.is_open}
    return all(
        user.is_fenced
        and user.host_id != survivor.host_id
        and user.node_id not in state.tails.values()
        and (user.is_recovered or user.node_id not in open_by)
        for user in users
    )


TakeWal = Callable[..., Awaitable[WriteAheadLog]]
HandBack = Callable[..., Awaitable[bool]]


class UnrecoveredWals:
    """Opens what fenced nodes left, for an engine's `take_over`. `wal_uri` is the address of the
    engine's own log, with all its options; `take` fences and opens a block log, `hand_back` gives a
    volume back, `is_device` returns true for disks, `processes` are those of this machine,
    `settings` those of block logs, `data_keys` the node's, if logs may be encrypted.
    """

    def __init__(
        self,
        engine: StreamEngine,
        wal_uri: str,
        *,
        take: TakeWal = take_wal,
        hand_back: HandBack = hand_back,
        is_device: Callable[[Path], bool] = Path.is_block_device,
        processes: Processes | None = None,
        settings: BlockWalSettings | None = None,
        data_keys: DataKeys | None = None,
    ) -> None:
        self._engine = engine
        self._data_keys = data_keys
        self._settings = settings
        self._wal_uri = wal_uri
        self._take = take
        self._hand_back = hand_back
        self._is_device = is_device
        self._processes = processes or HostProcesses()

    async def open(self, node: NodeState, owner: WalOwner) -> WriteAheadLog | None:
        """Fence a node where it writes and open its log; `owner` stands for it. None: all of it is
        in the cluster's store.

        Raises SettingsError (not to be reached from here), and what `take_wal` and `open_wal`
        raise.
        """
        own = self._engine.node
        if not node.wal.startswith("block:"):
            self._end_process(node)
        if node.wal in _IN_CLUSTER:
            return None
        if _reaches(own.wal, own.host_id, node):
            if node.wal.startswith("block:"):
                return await self._take_block_log(node, owner)
            return await open_wal(
                self._wal_uri, rng=owner.rng, owner=owner, data_keys=self._data_keys
            )
        if self._has_device_of(node):
            return await self._take_block_log(node, owner)
        raise SettingsError(
            f"node {node.node_id} of host {node.host_id or '?'} left its log at "
            f"{node.wal or 'no address'}, which node {own.node_id} does not reach"
        )

    async def recover(self, dead: NodeState) -> int:
        """Commit what a fenced node left, as `StreamEngine.take_over` does, and give its volume
        back.
        """
        found = await self._engine.take_over(dead, self.open)
        await self._give_back(dead)
        return found

    async def give_back_all(self) -> None:
        """Give back what this host still has of earlier takeovers, whose taker ended too early."""
        nodes = self._engine.metadata.state.nodes.values()
        for node in {exclusive_volume(node.wal): node for node in nodes}.values():
            await self._give_back(node)

    async def _give_back(self, dead: NodeState) -> None:
        """Detach the volume that a recovered node left, if no node here needs it any more: its own
        host waits for it. A failure is logged, since nothing else depends on it.
        """
        state = self._engine.metadata.state
        survivor = state.nodes.get(self._engine.node.node_id)
        if survivor is None or not is_to_give_back(state, survivor, dead):
            return
        try:
            if await self._hand_back(dead.wal, cluster_id=state.cluster_id):
                _log.info("volume_given_back", node_id=dead.node_id, wal=dead.wal)
        except (StorageError, SettingsError, OSError) as error:
            _log.warning("volume_not_given_back", wal=dead.wal, error=str(error))

    def _end_process(self, node: NodeState) -> None:
        """End the process of a fenced node of this machine, if it is still there.

        A log in a store fences by itself, so this is for the node's clients: one that hangs keeps
        their connections, and they would wait for its responses until they time out.
        """
        own = self._engine.node
        if not node.process or node.process == own.process or node.host_id != own.host_id:
            return
        try:
            if self._processes.kill(Holder.named(node.process)):
                _log.warning("fenced_process_ended", node_id=node.node_id, epoch=node.epoch)
        except (StorageError, ValueError) as error:
            _log.warning("fenced_process_not_ended", node_id=node.node_id, error=str(error))

    def _has_device_of(self, node: NodeState) -> bool:
        state, own = self._engine.metadata.state, self._engine.node
        survivor = state.nodes.get(own.node_id)
        if survivor is None or not may_reach_device(state, survivor, node):
            return False
        if may_have(survivor.wal, node.wal):
            return True  # or can be, which opening it finds out
        return self._is_device(Path(node.wal.removeprefix("block:").partition("?")[0]))

    async def _take_block_log(self, node: NodeState, owner: WalOwner) -> WriteAheadLog:
        """Fence the node's process, or its whole host, and open its slice. Of another host's disk
        any host of the cluster may hold the reservation: a taker that died, say.
        """
        own, nodes = self._engine.node, self._engine.metadata.state.nodes.values()
        hosts = {known.host_id for known in nodes} - {"", own.host_id}
        return await self._take(
            node.wal,
            node_id=node.node_id,
            cluster_id=owner.cluster_id,
            host_id=own.host_id,
            other_hosts=() if own.host_id == node.host_id else sorted(hosts),
            taker=(own.node_id, self._engine.node_epoch),
            judge=lambda holder, waited_s: self._judge(node, holder, waited_s),
            settings=self._settings,
            data_keys=self._data_keys,
        )

    def _judge(self, dead: NodeState, holder: Holder, waited_s: float) -> Verdict:
        """End the process that was fenced, and a taker that was. One that the node was started as
        since then recovers its log itself, once it has registered: it is ended only if that takes
        too long.
        """
        nodes = self._engine.metadata.state.nodes
        if holder.taker is not None:
            taker = nodes.get(holder.taker[0])
            is_live = taker is not None and taker.epoch == holder.taker[1] and not taker.is_fenced
            return Verdict.LEAVE if is_live else Verdict.END
        if holder.incarnation in {"", dead.incarnation}:
            return Verdict.END
        now = nodes.get(dead.node_id)
        if now is not None and now.epoch > dead.epoch:
            return Verdict.LEAVE
        return Verdict.WAIT if waited_s < _START_S else Verdict.END
