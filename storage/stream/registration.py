"""Registration of a starting node: under the next epoch of its id, with the log that holds its
acknowledged records.

The metadata keeps, for each node, the id of the log on which its last epoch began, that epoch, and
a position up to which the log was uploaded. A log with another id, with an earlier epoch or with a
nearer end is the wrong one: acknowledged records beyond the uploads would be lost, and their
offsets given to other records. The starting node and a recovering node both refuse such a log,
unless nothing can be lost: the node has no open stream, or was recovered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehead.storage.errors import Fenced, WrongLog
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.feature_level import LOWEST_LEVEL, NEWEST_LEVEL
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import AcceptLogLoss, Record, RegisterNode, StartLog
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState
from lakehead.storage.stream.upload import Writer
from lakehead.storage.wal.protocol import Claim, LogIdentity, WriteAheadLog

if TYPE_CHECKING:
    from lakehead.storage.stream.settings import NodeIdentity

_NAMED_MAX = 3
"""So many partitions are named in a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoss:
    """The loss if a node goes on with the log `found`, or without one: the tails of `streams`, open
    under their epochs, in the node's known log.
    """

    node: NodeState
    streams: tuple[StreamState, ...]
    found: LogIdentity | None

    @property
    def accepted_by(self) -> str:
        """The value by which an operator accepts it: it names this loss alone, and no later one."""
        return f"{self.node.node_id}:{self.node.epoch}"

    def describe(self, state: MetadataImage, found: str) -> str:
        """Return in one line what would be lost, and how that is accepted. `found` says what is
        there instead.
        """
        node = self.node
        named = [_partition(state, stream) for stream in self.streams[:_NAMED_MAX]]
        more = len(self.streams) - len(named)
        partitions = ", ".join(named) + (f" and {more} more" if more else "")
        place = f" at {node.wal}" if node.wal else ""
        return (
            f"node {node.node_id}: {found}, and the node wrote last to the write-ahead log "
            f"{node.log.log_id}{place}, in epoch {node.log.epoch}. Records that were acknowledged "
            f"and are only there would be lost, of {len(self.streams)} open partitions "
            f"({partitions}). Start the node with that log; if it is gone for good, accept it "
            f"by --accept-log-loss {self.accepted_by}"
        )

    def found_at(self, address: str) -> str:
        """Return what a log is that was opened at an address, in the place of the known one."""
        found, known = self.found, self.node.log
        if found is None:
            return f"{address} does not hold its log"
        if found.log_id != known.log_id:
            last = f"of epoch {found.epoch}" if found.epoch >= 0 else "in which it never wrote"
            return f"{address} is another log, {found.log_id}, {last}"
        if found.epoch < known.epoch:
            return f"{address} is an older state of its log, of epoch {found.epoch}"
        return (
            f"{address} is an older state of its log, which ends at position {found.end} and was "
            f"uploaded up to {known.position}"
        )


def log_loss(state: MetadataImage, node_id: int, found: LogIdentity | None) -> LogLoss | None:
    """Return what is lost if a node goes on with a log; None: nothing.

    `found` None stands for a log that holds nothing of it: a new one, one in memory, or the one in
    the cluster's store, where its own is not.
    """
    node = state.nodes.get(node_id)
    if node is None or not node.log.log_id or state.is_settled(node) or is_it(node, found):
        return None
    in_tails = state.places_in(state.tails_of(node_id))
    streams = tuple(
        stream
        for stream in state.streams.values()
        if stream.stream_id in in_tails
        or (stream.is_open and stream.node_id == node_id and not node.is_recovered)
    )
    return LogLoss(node=node, streams=streams, found=found) if streams else None


def is_it(node: NodeState, found: LogIdentity | None) -> bool:
    """Return true if a log is the known one of a node, in no earlier state than is known."""
    known = node.log
    return (
        found is not None
        and found.log_id == known.log_id
        and found.epoch >= known.epoch
        and found.end >= known.position
    )


def refuse_wrong_log(
    state: MetadataImage, node_id: int, found: LogIdentity | None, address: str
) -> None:
    """Raise WrongLog if something is lost by going on with the log at an address."""
    loss = log_loss(state, node_id, found)
    if loss is not None:
        raise WrongLog(loss.describe(state, loss.found_at(address)))


def _partition(state: MetadataImage, stream: StreamState) -> str:
    topic = state.topic_by_id(stream.topic_id)
    name = stream.topic_id if topic is None else topic.name
    return f"{name}-{stream.partition} epoch {stream.epoch}"


_LOGS_LEVEL = 2
"""From this feature level on the metadata know the logs of nodes."""
_log = event_logger("storage.registration")


async def register(
    metadata: MetadataLog, node: NodeIdentity, incarnation: str, wal: WriteAheadLog
) -> tuple[Writer, LogIdentity | None]:
    """Begin the node's next epoch, in the metadata, with the log that was opened; return the writer
    of its objects, and the identity of the log.

    Raises WrongLog when something would be lost by going on with that log, and no operator has
    accepted it; Fenced when another incarnation has begun a later epoch by the time that this is
    known; and what reading the log raises.
    """
    while True:
        reach = _known_end(metadata.state, node.node_id)
        found = await wal.identify(reach=reach)
        try:
            return await _register(metadata, node, incarnation, found), found
        except WrongLog:
            # The last commit of an earlier life may have come in between: then the log may reach as
            # far as that says, and was not checked for it.
            if _known_end(metadata.state, node.node_id) == reach:
                raise


def _known_end(state: MetadataImage, node_id: int) -> int:
    """Return up to where the log that a node wrote last is known to reach."""
    node = state.nodes.get(node_id)
    return -1 if node is None else node.log.position


async def _register(
    metadata: MetadataLog, node: NodeIdentity, incarnation: str, found: LogIdentity | None
) -> Writer:
    planned: list[RegisterNode] = []
    losses: list[LogLoss] = []

    def plan(state: MetadataImage) -> list[Record]:
        own = _registration(state, node, incarnation)
        loss = log_loss(state, node.node_id, found)
        if loss is not None and not accepts(node, loss):
            raise WrongLog(loss.describe(state, loss.found_at(node.wal or "this")))
        planned[:] = [own]
        losses[:] = [] if loss is None else [loss]
        return [own, *(_acceptance(own, loss) for loss in losses)]

    state = await metadata.commit_with(plan)
    failpoint("node_registered")
    for loss in losses:
        _log.warning(
            "log_loss_accepted",
            node_id=node.node_id,
            lost_log=loss.node.log.log_id,
            lost_epoch=loss.node.log.epoch,
            streams=[stream.stream_id for stream in loss.streams],
        )
    own, known = planned[0], state.nodes.get(node.node_id)
    if known is None or known.epoch != own.epoch:
        raise Fenced(f"node {node.node_id} epoch {own.epoch} has a successor already")
    return Writer(
        cluster_id=state.cluster_id,
        node_id=node.node_id,
        node_epoch=own.epoch,
        incarnation=incarnation,
    )


def accepts(node: NodeIdentity, loss: LogLoss) -> bool:
    """Return true if an operator gave up the log that a node, by its epoch in the metadata, wrote
    last.
    """
    return node.accept_log_loss == loss.node.epoch


def _acceptance(own: RegisterNode, loss: LogLoss) -> AcceptLogLoss:
    return AcceptLogLoss(
        node_id=own.node_id,
        node_epoch=own.epoch,
        log_id="" if loss.found is None else loss.found.log_id,
        streams=len(loss.streams),
    )


async def begin_log(
    metadata: MetadataLog, writer: Writer, found: LogIdentity | None, begins_at: int
) -> None:
    """Say in the metadata on which log the node's epoch has begun: its next start has to find it.
    Below the feature level that has a record for that, nothing is said, and nothing is checked.
    Raises EntryRejected (it was fenced).
    """
    log_id = "" if found is None else found.log_id

    def plan(state: MetadataImage) -> list[Record]:
        node = state.nodes.get(writer.node_id)
        if state.metadata_version < _LOGS_LEVEL:
            return []
        if not log_id and (node is None or not node.log.log_id):
            return []
        return [
            StartLog(
                node_id=writer.node_id,
                node_epoch=writer.node_epoch,
                log_id=log_id,
                position=begins_at if found is not None and found.end >= 0 else -1,
            )
        ]

    await metadata.commit_with(plan)
    failpoint("log_begun")


def claim(state: MetadataImage, node: NodeIdentity) -> Claim:
    """Return the hosts that a starting node may have its own volume back from, by the metadata.

    It is judged before the node registers. That does no harm: a node that recovers its log
    meanwhile is refused by the device, or by the metadata, and this node reads again what is there.
    """
    elsewhere = [known for known in state.nodes.values() if known.host_id != node.host_id]
    return Claim(
        other_hosts=tuple(sorted({known.host_id for known in elsewhere} - {""})),
        live_nodes=frozenset(
            known.node_id
            for known in elsewhere
            if not known.is_fenced and known.node_id != node.node_id
        ),
    )


def _registration(state: MetadataImage, node: NodeIdentity, incarnation: str) -> RegisterNode:
    known = state.nodes.get(node.node_id)
    last = state.retired_nodes.get(node.node_id, -1) if known is None else known.epoch
    return RegisterNode(
        node_id=node.node_id,
        epoch=last + 1,
        incarnation=incarnation,
        host=node.host,
        port=node.port,
        rack=node.rack,
        host_id=node.host_id,
        wal=node.wal,
        process=node.process,
        min_level=LOWEST_LEVEL,
        max_level=NEWEST_LEVEL,
        tables=node.tables,
        endpoints=node.endpoints,
    )
