"""The life of this broker in its cluster: registration checks, heartbeats, session, shutdown.

In this order: before a node registers, `refuse_other_cluster` and `refuse_duplicate_id` check that
it may; `check_advertised_address` checks that its address leads to it. `BrokerLifecycle` keeps a
`HeartbeatChannel` to every other registered node, feeds the failure detector (`membership`) and the
`Session`, and ends with a controlled shutdown. Nothing here decides anything for the cluster:
decisions are entries of the metadata log, and heartbeats only make them quick.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Protocol

import structlog

from lakehead.broker.cluster.heartbeat import (
    ERROR_NONE,
    ERROR_OTHER_CLUSTER,
    ERROR_STALE_EPOCH,
    ERROR_STRANGER,
    Heartbeat,
    HeartbeatResponse,
    NodeLoad,
    decode_heartbeat_response,
    encode_heartbeat,
)
from lakehead.broker.cluster.inter_broker_client import PeerChannel, PeerNetwork, probe
from lakehead.broker.cluster.membership import HANGS, Membership, MembershipView
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.clock import Clock
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.format.feature_level import LOWEST_LEVEL, NEWEST_LEVEL
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DrainNode, Entry, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.plain_text import address_text
from lakehead.storage.tasks import TaskScope

RESPONSE_TIMEOUT_S = 1.0
"""Time for the node that is registered under this node's id to respond."""
ADVERTISED_TIMEOUT_S = 2.0
"""Time for the advertised address to respond."""
READ_TIMEOUT_S = 1.0
"""Time that a read waits for the metadata log. Then the session ends, or other nodes prove it."""
_CONNECTS = 8
"""Attempts to connect within a heartbeat interval."""
_AHEAD_MAX = 256
"""Entries that another node may plausibly have before this one."""
_LEVELS = (LOWEST_LEVEL, NEWEST_LEVEL)
_SHUTDOWN_POLL_S = 0.1
ENCRYPTION_LEVEL = 2
"""The feature level from which on every release reads encrypted objects."""

_log = structlog.get_logger("broker.cluster")


# Registration.


def refuse_other_cluster(state: MetadataImage, wanted: str, store_uri: str) -> None:
    """Raise SettingsError if the store has another cluster than `wanted`, the id that the node is
    configured with, or none. An empty `wanted` accepts any.
    """
    if wanted in {"", state.cluster_id}:
        return
    found = f"has cluster {state.cluster_id}" if state.cluster_id else "has no cluster"
    raise SettingsError(
        f"{store_uri} {found}, but cluster.id is {wanted}: set the right store, or another "
        "cluster.id"
    )


def refuse_early_encryption(state: MetadataImage, encryption: EncryptionSettings) -> None:
    """Raise SettingsError if a node would encrypt in a cluster whose older releases read what it
    writes.
    """
    if encryption.is_on and state.cluster_id and state.metadata_version < ENCRYPTION_LEVEL:
        raise SettingsError(
            f"encryption.key.provider needs metadata.version {ENCRYPTION_LEVEL}, and the cluster "
            f"is at {state.metadata_version}: start every node with this release, then run: "
            "lakehead features upgrade"
        )


async def refuse_duplicate_id(
    network: PeerNetwork,
    state: MetadataImage,
    node_id: int,
    *,
    timeout_s: float = RESPONSE_TIMEOUT_S,
) -> None:
    """Raise SettingsError if a live process of this cluster already serves under this broker id.

    A process that does not respond counts as dead, and is fenced.
    """
    known = state.nodes.get(node_id)
    if known is None or known.is_fenced:
        return
    request = Heartbeat(
        node_id=-1, epoch=-1, next_entry=state.next_entry, cluster_id=state.cluster_id
    )
    proof = NodeProof(secret=state.node_secret, to_node=node_id)
    response = await probe(network, known.host, known.port, request, timeout_s, proof)
    if response is None or response.error:
        return
    if (response.node_id, response.epoch) != (node_id, known.epoch):
        return
    raise SettingsError(
        f"node {node_id} is alive at {address_text(known.host, known.port)}: this node runs "
        "already; to start another node, set a node.id, a port and a write-ahead log of its own"
    )


async def check_advertised_address(
    network: PeerNetwork, own: NodeState, state: MetadataImage
) -> bool:
    """Connect to the advertised address as a client would; return whether this node responds.

    Raises SettingsError if another node responds, since clients would take it for this one. Logs a
    warning if there is no response, or if nodes on other machines cannot reach the address: in some
    networks a node cannot reach itself by the address that all others use.
    """
    request = Heartbeat(node_id=-1, epoch=-1, next_entry=0, cluster_id=state.cluster_id)
    proof = NodeProof(secret=state.node_secret, to_node=own.node_id)
    response = await probe(network, own.host, own.port, request, ADVERTISED_TIMEOUT_S, proof)
    if response is None:
        _warn(own, "no node responds there")
        return False
    if response.incarnation != own.incarnation:
        other = "of another cluster" if response.error == ERROR_OTHER_CLUSTER else "of this cluster"
        raise SettingsError(
            f"advertised.host and advertised.port of node {own.node_id} lead to node "
            f"{response.node_id} {other}, at {address_text(own.host, own.port)}: "
            "give this node's own address"
        )
    hosts = {node.host_id for node in state.nodes.values() if not node.is_fenced}
    if _is_loopback(own.host) and not hosts <= {"", own.host_id}:
        _warn(own, "nodes on other machines cannot reach a loopback address")
        return False
    return True


def _warn(own: NodeState, reason: str) -> None:
    _log.warning(
        "advertised_address_unreachable",
        node_id=own.node_id,
        host=own.host,
        port=own.port,
        reason=reason,
        remedy="clients and other nodes are sent there: set advertised.host and advertised.port "
        "to what they reach",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


# Heartbeats.


class HeartbeatListener(Protocol):
    """Receives what a heartbeat channel learns about its peer."""

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat to send now."""

    def proof(self, peer: NodeState) -> NodeProof:
        """Return the proof for a peer that the heartbeat comes from a node."""

    def responded(self, peer: NodeState, response: HeartbeatResponse, sent_at: float) -> None:
        """Handle a response to a heartbeat sent at `sent_at` (monotonic seconds)."""

    def lost(self, peer: NodeState) -> None:
        """Handle the end of the connection."""

    def refused(self, peer: NodeState) -> None:
        """Handle a connection that the peer's address refused."""

    def accepted(self, peer: NodeState) -> None:
        """Handle a connection that the address of a silent peer accepted."""


class HeartbeatChannel:
    """Sends heartbeats to one epoch of one other node: every interval, or when nudged. `run` is its
    task.

    Refused connections are tried again quickly: a lasting refusal distinguishes a node that is gone
    from one that is slow.
    """

    def __init__(
        self,
        peer: NodeState,
        network: PeerNetwork,
        listener: HeartbeatListener,
        clock: Clock,
        *,
        interval_s: float,
        session_s: float,
    ) -> None:
        self.peer = peer
        self.known_entry = -1
        """The peer has reported that it has the metadata entries below this number."""
        self.agreed_at = float("-inf")
        """The time (monotonic seconds) of the last heartbeat to which the peer responded that it
        knows this node, and no entry that this node lacks.
        """
        self._network = network
        self._listener = listener
        self._clock = clock
        self._interval_s = interval_s
        self._session_s = session_s
        self._wakeup = asyncio.Event()
        self._sent = 0

    def nudge(self) -> None:
        """Send a heartbeat now."""
        self._wakeup.set()

    async def run(self) -> None:
        """Connect and send heartbeats until cancelled."""
        while True:
            channel = await self._connect()
            has_response = False
            if channel is not None:
                try:
                    has_response = await self._exchange(channel)
                finally:
                    channel.close()
            if not has_response:  # after a response reconnect at once: a refusal is a quick report
                self._wakeup.clear()
                await self._pause(self._interval_s / _CONNECTS)

    async def check_address(self) -> None:
        """Test whether the silent peer accepts connections. The present connection stays."""
        try:
            async with asyncio.timeout(self._session_s / 3):
                await self._network.probe(self.peer.host, self.peer.port)
        except ConnectionRefusedError:
            self._listener.refused(self.peer)
        except (OSError, TimeoutError):
            pass
        else:
            self._listener.accepted(self.peer)

    def _closed(self) -> None:
        self._listener.lost(self.peer)
        self._wakeup.set()

    async def _connect(self) -> PeerChannel | None:
        try:
            async with asyncio.timeout(self._session_s):
                return await self._network.connect(self.peer.host, self.peer.port, self._closed)
        except ConnectionRefusedError:
            self._listener.refused(self.peer)
        except (OSError, TimeoutError):
            pass  # the peer stays silent, which membership notices
        return None

    async def _exchange(self, channel: PeerChannel) -> bool:
        """Send heartbeats until the connection ends or stays silent; return whether the peer
        responded to any.
        """
        has_response = False
        while channel.is_open:
            sent_at = self._clock.monotonic()
            self._wakeup.clear()
            self._sent += 1
            proof = self._listener.proof(self.peer)
            frame = encode_heartbeat(self._listener.heartbeat(), self._sent & 0x7FFFFFFF, proof)
            try:
                async with asyncio.timeout(self._session_s):
                    number, response = decode_heartbeat_response(await channel.send(frame))
            except (OSError, TimeoutError):
                break
            except MalformedFrame as error:
                self._log_stranger(str(error))
                return False
            if number != self._sent & 0x7FFFFFFF:
                return False
            has_response = True
            self.known_entry = max(self.known_entry, response.next_entry)
            self._listener.responded(self.peer, response, sent_at)
            await self._pause(self._interval_s - (self._clock.monotonic() - sent_at))
        return has_response

    async def _pause(self, seconds: float) -> None:
        """Wait `seconds`, until a nudge, or until the connection ends."""
        if seconds <= 0 or self._wakeup.is_set():
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    def _log_stranger(self, reason: str) -> None:
        _log.warning(
            "peer_address_taken",
            peer_id=self.peer.node_id,
            host=self.peer.host,
            port=self.peer.port,
            reason=reason,
        )


class Session:
    """Proof that this node was not fenced within the session time, which serving reads requires.

    A node that was fenced while it slept, or while it was cut off, must not report the end of a log
    that another node writes by now. So reads require proof that this node was not fenced, as of a
    moment within `broker.session.timeout.ms`. There are two proofs: the metadata log, read at that
    moment; and the response to a heartbeat from another node that had read the log by then. That
    node reports the age of its state, so its response proves what was true at `sent - age`, since
    it was made after the heartbeat was sent. Only durations of each node's monotonic clock count;
    clocks of different nodes are not compared. A proof of this node serves as proof for others only
    if this node has every entry that the responding node had.

    So one fresh reader of the log is enough for a cluster: the first node reads when half of its
    session is over, the others only if they had no response from it by three quarters. No node
    reads without fetches. Produce needs no session: the write-ahead log fences.

    A store that does not respond must not stop consumers that read from memory. So when reading the
    log has failed, a third proof counts: every other node that is not retired has responded since
    the attempt began, and none of them knows an entry that this node lacks. One that this node
    knows as fenced cannot respond so: it may have come back unseen, and have fenced this node. Only
    a node with a new id, which reaches the store alone, could have fenced this one. A node that has
    heard from such a node, which names an entry that it lacks, cannot use this proof. Neither can
    one that slept, since a successor may have been started meanwhile: the log, or a node that has
    read it, must respond first.

    Access rules require more (`is_state_current`): a state that was the newest within the session
    time, so that a node that is cut off soon allows nothing by rules that are not in force any
    more.

    `is_unfenced` reads this node's own state. `is_unanimous(since)` returns true if every other
    node is unfenced, has responded since then and knows no entry that this node lacks.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        scope: TaskScope,
        *,
        session_s: float,
        is_unfenced: Callable[[], bool],
        is_unanimous: Callable[[float], bool],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._scope = scope
        self._session_s = session_s
        self.is_first = True
        """True if this node reads the log before the others do."""
        self._is_unfenced = is_unfenced
        self._is_unanimous = is_unanimous
        self._proven_at = float("-inf")
        self._current_at = float("-inf")
        self._agreed_at = float("-inf")
        self._slept_at = float("-inf")
        self._named_entry = 0
        self._named_at = float("-inf")
        self._renewal: asyncio.Task[None] | None = None

    @property
    def proven_at(self) -> float:
        """The latest time (monotonic seconds) at which this node was certainly not fenced."""
        return max(self._proven_at, self._metadata.fresh_at)

    def note_response(self, sent_at: float, fresh_ms: int | None, next_entry: int) -> None:
        """Record that another node knows this one as unfenced. Its state is `fresh_ms` old and has
        the entries below `next_entry`.
        """
        if fresh_ms is None:
            return
        proven_at = sent_at - fresh_ms / 1000
        self._proven_at = max(self._proven_at, proven_at)
        if next_entry <= self._metadata.state.next_entry:
            self._current_at = max(self._current_at, proven_at)

    def note_entry(self, next_entry: int) -> None:
        """Record that another node, known or not, claims to have the entries below a number."""
        if next_entry > self._metadata.state.next_entry:
            self._named_entry = max(next_entry, self._named_entry if self._is_behind() else 0)
            self._named_at = self._clock.monotonic()

    def _is_behind(self) -> bool:
        """Return true if an entry that was named may be there, and this node lacks it."""
        is_lacking = self._named_entry > self._metadata.state.next_entry
        return is_lacking and self._metadata.fresh_at <= self._named_at

    def note_sleep(self) -> None:
        """Record that this node has slept until now, for long enough to be fenced."""
        self._slept_at = self._clock.monotonic()

    def state_age_ms(self) -> int | None:
        """Return the age of this node's state in milliseconds, or None if it was never current."""
        age = self._clock.monotonic() - max(self._current_at, self._metadata.fresh_at)
        return None if age == float("inf") else int(age * 1000) + 1

    def is_current(self) -> bool:
        """Return true if reads may be served now. A renewal starts well before the session ends, so
        that continuous reads never wait for one.
        """
        age = self._clock.monotonic() - self.proven_at
        if age >= self._session_s * (0.5 if self.is_first else 0.75):
            self._renew()
        return age < self._session_s and self._is_unfenced()

    async def ensure(self) -> bool:
        """Return whether reads may be served, after reading the metadata log if necessary."""
        if not self.is_current():
            await asyncio.shield(self._renew())
        return self.is_current()

    def is_state_current(self) -> bool:
        """Return true if this node's state was the newest at a moment within the session time: what
        was decided before that moment (access rules above all) is in it. A renewal starts well
        before.
        """
        now = self._clock.monotonic()
        age = now - max(self._current_at, self._metadata.fresh_at, self._agreed_at)
        if age >= self._session_s * (0.5 if self.is_first else 0.75):
            self._renew()
        return age < self._session_s and self._is_unfenced()

    async def ensure_state(self) -> bool:
        """Return the same, after reading the metadata log if necessary."""
        if not self.is_state_current():
            await asyncio.shield(self._renew())
        return self.is_state_current()

    def _renew(self) -> asyncio.Task[None]:
        if self._renewal is None or self._renewal.done():
            self._renewal = self._scope.spawn(
                self._read_log(), name="renew the session", is_awaited=True
            )
        return self._renewal

    async def _read_log(self) -> None:
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._metadata.refresh(surely=True)
        except (TimeoutError, StorageError):
            is_awake = self.proven_at >= self._slept_at
            if self._is_unanimous(began) and is_awake and not self._is_behind():
                self._proven_at = max(self._proven_at, began)
                self._agreed_at = began  # none of them knows an entry that this node lacks


class Leaderships(Protocol):
    """The streams that a node leads: `ReplicaManager`."""

    @property
    def held(self) -> Collection[int]: ...

    async def wait(self) -> None:
        """Wait until a leadership transition was made or became due."""


# The lifecycle.


class BrokerLifecycle:
    """The life of this node, registered as `own`, and its view of the others.

    The node goes through these states: starting (`start`), recovered (`recovered`: its log is
    recovered, and its metadata follower runs), serving (`serve`), leaving (`leave`). `load` returns
    this node's load.
    """

    def __init__(
        self,
        own: NodeState,
        metadata: MetadataLog,
        network: PeerNetwork,
        clock: Clock,
        scope: TaskScope,
        *,
        interval_s: float,
        session_s: float,
        load: Callable[[], NodeLoad],
    ) -> None:
        self.own = own
        self.on_change: list[Callable[[], None]] = []
        """Called when the view of other nodes has changed."""
        self.membership = Membership(
            own.node_id, interval_s=interval_s, session_s=session_s, now=clock.monotonic()
        )
        self.session = Session(
            metadata,
            clock,
            scope,
            session_s=session_s,
            is_unfenced=self._is_unfenced,
            is_unanimous=self._is_unanimous,
        )
        self.is_starting = True
        self.is_leaving = False
        self.interval_s = interval_s
        self.session_s = session_s
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self._scope = scope
        self._nudge_follower: Callable[[int], None] | None = None
        self._load = load
        self._channels: dict[int, tuple[HeartbeatChannel, asyncio.Task[None]]] = {}
        self._address_checks: set[int] = set()
        self._nodes = metadata.state.nodes

    def start(self) -> None:
        """Start heartbeats to every other node that is registered, now and later."""
        self._metadata.follow(self._changed)
        self._follow_nodes(self._metadata.state)
        self._scope.spawn(self._watch_own_time(), name="watch own time")

    def recovered(self, nudge: Callable[[int], None]) -> None:
        """Read the entries that other nodes report from now on.

        `nudge(next_entry)` makes the metadata follower read the entries below that number, or poll
        if it is 0.
        """
        self._nudge_follower = nudge

    def _nudge(self, next_entry: int) -> None:
        if self._nudge_follower is not None:
            self._nudge_follower(next_entry)

    def serve(self) -> None:
        """Report to the other nodes that this node serves from now on."""
        self.is_starting = False
        self._report_change()
        self._nudge_all()

    def leave(self) -> None:
        """Report to the other nodes that this node is about to stop."""
        self.is_leaving = True
        self._report_change()
        self._nudge_all()

    async def controlled_shutdown(self, leaderships: Leaderships) -> None:
        """Report that this node leaves, and hand its leaderships over.

        Return when it leads nothing, or when every other node is leaving or gone. The caller
        bounds the time.
        """
        self.leave()
        if not (leaderships.held and self._successors(self._metadata.state)):
            return
        began, before = self._clock.monotonic(), len(leaderships.held)
        own = self.own

        def plan(state: MetadataImage) -> list[Record]:
            if not self._successors(state) or state.nodes[own.node_id].is_draining:
                return []
            return [DrainNode(node_id=own.node_id, epoch=own.epoch, is_draining=True)]

        try:
            await self._metadata.commit_with(plan)
            while leaderships.held and self._successors(self._metadata.state):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SHUTDOWN_POLL_S):
                        await leaderships.wait()
        except StorageError as error:
            _log.warning("leaderships_not_resigned", node_id=own.node_id, reason=str(error))
        finally:
            _log.info(
                "leaderships_resigned",
                node_id=own.node_id,
                partitions=before - len(leaderships.held),
                left=len(leaderships.held),
                seconds=round(self._clock.monotonic() - began, 3),
            )

    def _successors(self, state: MetadataImage) -> list[int]:
        """Return the other nodes that can take leaderships over; none once this node is fenced."""
        if not self._is_unfenced_in(state):
            return []
        return [
            node_id
            for node_id in self.view().ready
            if (known := state.nodes.get(node_id)) is not None
            and not known.is_fenced
            and not known.is_draining
        ]

    def view(self) -> MembershipView:
        """Return this node's present view of the others."""
        self._turn()
        return self.membership.view(self._clock.monotonic())

    def _turn(self) -> None:
        stalled = self.membership.turn(self._clock.monotonic())
        if stalled:
            _log.warning("node_stalled", seconds=round(stalled, 3))
            if stalled + 2 * self.interval_s >= HANGS * self.session_s:
                self.session.note_sleep()
            self._nudge(0)  # it may have missed reports of entries

    async def _watch_own_time(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s / 2)
            self._turn()
            for node_id in self.membership.silent(self._clock.monotonic()):
                self._check_address(node_id)

    def _check_address(self, node_id: int) -> None:
        channel = self._channels.get(node_id)
        if channel is not None and node_id not in self._address_checks:

            async def check() -> None:
                try:
                    await channel[0].check_address()
                finally:
                    self._address_checks.discard(node_id)

            self._address_checks.add(node_id)
            self._scope.spawn_apart(check(), name=f"check the address of node {node_id}")

    def ready(self) -> frozenset[int]:
        """Return the nodes that serve. This one counts until it leaves."""
        own = () if self.is_leaving else (self.own.node_id,)
        return frozenset(self.view().ready).union(own)

    def unreachable(self) -> frozenset[int]:
        """Return the nodes whose connections have ended: they are about to be fenced, or to
        restart.

        Clients should read "no leader" in their place, and retry soon. A client whose connection
        ended sends its request within a millisecond, so this must be known as early.
        """
        return self.membership.unreachable()

    def levels(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and highest feature level that each node supports, this one
        included.
        """
        return {**self.membership.levels(), self.own.node_id: _LEVELS}

    @property
    def own_load(self) -> NodeLoad:
        """The load of this node."""
        return self._load()

    # Heartbeats of other nodes.

    def handle_heartbeat(self, heartbeat: Heartbeat, *, is_from_node: bool) -> HeartbeatResponse:
        """Handle a heartbeat and return the response.

        Once the cluster has a secret, a heartbeat without proof changes nothing. Its response still
        has the number of the next entry, so that a node that has not read the secret yet reads on.
        """
        state = self._metadata.state
        if state.node_secret and not is_from_node:
            return self._response(error=ERROR_STRANGER)
        if heartbeat.cluster_id not in {"", state.cluster_id}:
            return self._response(error=ERROR_OTHER_CLUSTER)
        self._read_up_to(heartbeat.next_entry)
        if heartbeat.node_id < 0:  # sent by a command
            return self._response(load=self._load())
        known = state.nodes.get(heartbeat.node_id)
        if known is None or known.epoch < heartbeat.epoch:
            return self._response()
        if known.epoch > heartbeat.epoch or known.is_fenced:
            return self._response(is_known=True, is_fenced=True, error=ERROR_STALE_EPOCH)
        channel = self._channels.get(heartbeat.node_id)
        if channel is not None:
            known_entry = min(heartbeat.next_entry, state.next_entry)
            channel[0].known_entry = max(channel[0].known_entry, known_entry)
        is_changed = self.membership.heard(
            heartbeat.node_id,
            heartbeat.epoch,
            self._clock.monotonic(),
            is_starting=heartbeat.is_starting,
            is_leaving=heartbeat.is_leaving,
            load=heartbeat.load,
            levels=heartbeat.levels,
        )
        self.membership.vouched(heartbeat.heard, self._clock.monotonic())
        if is_changed:
            self._report_change()
        return self._response(is_known=True)

    def _read_up_to(self, next_entry: int) -> None:
        """Read the entries below a number that another node reports; if the number is implausible,
        read to the end of the log.
        """
        self.session.note_entry(next_entry)
        ahead = next_entry - self._metadata.state.next_entry
        if ahead > 0:
            self._nudge(next_entry if ahead <= _AHEAD_MAX else 0)

    def _response(
        self,
        *,
        is_known: bool = False,
        is_fenced: bool = False,
        error: int = ERROR_NONE,
        load: NodeLoad | None = None,
    ) -> HeartbeatResponse:
        return HeartbeatResponse(
            node_id=self.own.node_id,
            epoch=self.own.epoch,
            next_entry=self._metadata.state.next_entry,
            error=error,
            is_known=is_known,
            is_fenced=is_fenced,
            is_starting=self.is_starting,
            is_leaving=self.is_leaving,
            incarnation=self.own.incarnation,
            fresh_ms=self.session.state_age_ms(),
            load=load or NodeLoad(),
            heard=self.membership.heard_lately(self._clock.monotonic()),
            levels=_LEVELS,
        )

    # The channels' listener.

    def proof(self, peer: NodeState) -> NodeProof:
        """See `HeartbeatListener.proof`."""
        return NodeProof(secret=self._metadata.state.node_secret, to_node=peer.node_id)

    def heartbeat(self) -> Heartbeat:
        """See `HeartbeatListener.heartbeat`."""
        state = self._metadata.state
        return Heartbeat(
            node_id=self.own.node_id,
            epoch=self.own.epoch,
            next_entry=state.next_entry,
            is_starting=self.is_starting,
            is_leaving=self.is_leaving,
            cluster_id=state.cluster_id,
            incarnation=self.own.incarnation,
            load=self._load(),
            heard=self.membership.heard_lately(self._clock.monotonic()),
            levels=_LEVELS,
        )

    def responded(self, peer: NodeState, response: HeartbeatResponse, sent_at: float) -> None:
        """See `HeartbeatListener.responded`."""
        if response.error == ERROR_OTHER_CLUSTER or response.node_id != peer.node_id:
            _log.warning(
                "peer_address_taken",
                peer_id=peer.node_id,
                host=peer.host,
                port=peer.port,
                found_node_id=response.node_id,
            )
            return
        self._read_up_to(response.next_entry)
        if response.epoch != peer.epoch:
            return
        if response.is_known and not response.is_fenced:
            self.session.note_response(sent_at, response.fresh_ms, response.next_entry)
            channel = self._channels.get(peer.node_id)
            if channel is not None and response.next_entry <= self._metadata.state.next_entry:
                channel[0].agreed_at = sent_at
        self.membership.reached(peer.node_id, peer.epoch)
        is_changed = self.membership.heard(
            peer.node_id,
            peer.epoch,
            self._clock.monotonic(),
            is_starting=response.is_starting,
            is_leaving=response.is_leaving,
            levels=response.levels,
        )
        self.membership.vouched(response.heard, self._clock.monotonic())
        if is_changed:
            self._report_change()

    def lost(self, peer: NodeState) -> None:
        """See `HeartbeatListener.lost`."""
        self.membership.lost(peer.node_id, peer.epoch, self._clock.monotonic())
        self._nudge_all()  # their responses say whether they still hear it

    def refused(self, peer: NodeState) -> None:
        """See `HeartbeatListener.refused`."""
        self.membership.refused(peer.node_id, peer.epoch, self._clock.monotonic())
        self._report_change()

    def accepted(self, peer: NodeState) -> None:
        """See `HeartbeatListener.accepted`."""
        self.membership.accepted(peer.node_id, peer.epoch, self._clock.monotonic())

    # Following the metadata.

    def _changed(self, state: MetadataImage, entry: Entry | None) -> None:
        if state.nodes is not self._nodes:
            self._nodes = state.nodes
            self._follow_nodes(state)
        if entry is not None and entry.writer == self._metadata.writer_id:
            for channel, _ in self._channels.values():
                if channel.known_entry < state.next_entry:
                    channel.nudge()

    def _follow_nodes(self, state: MetadataImage) -> None:
        if not self.membership.follow(state.nodes, self._clock.monotonic()):
            return
        for node_id, (channel, task) in list(self._channels.items()):
            known = state.nodes.get(node_id)
            if known is None or known.is_fenced or known.epoch != channel.peer.epoch:
                task.cancel()
                del self._channels[node_id]
        for node_id, known in state.nodes.items():
            if node_id == self.own.node_id or known.is_fenced or node_id in self._channels:
                continue
            channel = HeartbeatChannel(
                known,
                self._network,
                self,
                self._clock,
                interval_s=self.interval_s,
                session_s=self.session_s,
            )
            task = self._scope.spawn_loop(channel.run, name=f"heartbeats to node {node_id}")
            self._channels[node_id] = (channel, task)
        self._report_change()

    def _is_unfenced(self) -> bool:
        return self._is_unfenced_in(self._metadata.state)

    def _is_unfenced_in(self, state: MetadataImage) -> bool:
        known = state.nodes.get(self.own.node_id)
        return known is not None and known.epoch == self.own.epoch and not known.is_fenced

    def _is_unanimous(self, since: float) -> bool:
        """See `Session`. Nodes that this one knows as fenced have no channel."""
        return all(
            (found := self._channels.get(node_id)) is not None and found[0].agreed_at >= since
            for node_id in self._metadata.state.nodes
            if node_id != self.own.node_id
        )

    def _nudge_all(self) -> None:
        for channel, _ in self._channels.values():
            channel.nudge()

    def _report_change(self) -> None:
        self.session.is_first = self.own.node_id <= min(self.ready(), default=self.own.node_id)
        for callback in self.on_change:
            callback()
