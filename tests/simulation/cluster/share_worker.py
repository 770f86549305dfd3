"""A member of a share group as Kafka's clients are: heartbeats, share sessions and
acknowledgements.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.share.record_state import AcknowledgeType
from lakehead.broker.share.share_partition import AcquiredRecords
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.format.record_batch import iter_headers
from tests.simulation.cluster.client_wire import ClientWire
from tests.simulation.cluster.clients import HOST
from tests.simulation.cluster.share_judge import Verdict, ranges
from tests.simulation.cluster.topics import TASKS
from tests.simulation.cluster.transactional_producer import GROUP, find_coordinator
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.lives import Life

HEARTBEAT_S = 0.7
WAIT_MS = 400
"""A fetch waits so long for records."""
_HEARTBEAT, _FETCH, _ACKNOWLEDGE = (76, 1), (78, 2), (79, 2)
_JOIN, _LEAVE = 0, -1
"""Epochs of members."""
_INITIAL, _FINAL = 0, -1
"""Epochs of share sessions."""
_SIZE = 64 << 10

COORDINATOR_AGAIN = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
    }
)
_REJOIN = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.group_id_not_found,
    }
)
_SESSION_LOST = frozenset(
    {ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch}
)
_ELSEWHERE = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.coordinator_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_state_epoch,
    }
)
_REFUSED = frozenset({ErrorCode.invalid_record_state, ErrorCode.invalid_request})
"""Of acknowledgements for records that the member has no longer."""


@dataclass(slots=True)
class _Session:
    """A share session with a node."""

    epoch: int = _INITIAL
    partitions: set[int] = field(default_factory=set)
    due: list[Verdict] = field(default_factory=list)
    """Verdicts that go with the next request."""

    def take(self, verdict: Verdict) -> None:
        """Let a verdict go with the next request."""
        self.due.append(verdict)

    @property
    def is_renewing(self) -> bool:
        """True if locks are to be renewed, which no fetch does."""
        return any(AcknowledgeType.RENEW in one.types.values() for one in self.due)


class ShareWorker:
    """One life of a member, which works until it is to leave, or killed. One that `is_tidy`
    accepts everything at once.
    """

    def __init__(
        self,
        world: ClusterWorld,
        life: Life,
        rng: random.Random,
        group_id: str,
        *,
        lock_s: float,
        is_tidy: bool = False,
    ) -> None:
        self.life = life
        self.is_leaving = False
        self.works_on = rng.random() < 0.3
        """It leaves the group first, and works on for a while."""
        self._world = world
        self._rng = rng
        self._group_id = group_id
        self._lock_s = lock_s
        self._is_tidy = is_tidy
        self._id = life.name
        self._epoch = _JOIN
        self._assigned: frozenset[int] = frozenset()
        self._coordinator: Address | None = None
        self._coordinator_wire = ClientWire(world, life, HOST)
        self._wire = ClientWire(world, life, HOST)
        self._sessions: dict[Address, _Session] = defaultdict(_Session)
        self._pace_s = 0.05 if is_tidy else rng.choice([0.05, 0.3, 1.0])

    async def run(self) -> None:
        """Take part in the group until it is to leave; then close, in order or not."""
        staying = asyncio.get_running_loop().create_task(self._stay(), name=f"{self._id} stays")
        while not self.is_leaving:
            await self._work()
            if staying.done():
                staying.result()
        staying.cancel()
        if self.works_on:
            await self._leave_late()
            return
        for where in list(self._sessions):
            await self._close(where)
        await self._beat(_LEAVE)
        self._end()

    async def _leave_late(self) -> None:
        """Leave the group first, and go on to work for a while: no coordinator forbids it."""
        await self._beat(_LEAVE)
        until = self._world.virtual_s + self._rng.uniform(0.0, 4 * self._lock_s)
        while self._world.virtual_s < until:
            await self._work()
        self._end()

    def _end(self) -> None:
        self._wire.close()
        self._coordinator_wire.close()
        self.life.kill()

    # ------------------------------------------------------------- membership

    async def _stay(self) -> None:
        while True:
            await self._beat(self._epoch)
            await asyncio.sleep(HEARTBEAT_S * self._rng.uniform(0.5, 1.0))

    async def _beat(self, epoch: int) -> None:
        """Send a heartbeat, and take what the response says."""
        wire, where = self._coordinator_wire, self._coordinator
        if where is None:
            where = await find_coordinator(wire, self._rng, self._group_id, GROUP)
        if where is None:
            return
        self._coordinator = where
        try:
            response = await wire.send(
                *(where, *_HEARTBEAT, "ShareGroupHeartbeatRequest"),
                group_id=self._group_id,
                member_id=self._id,
                member_epoch=epoch,
                subscribed_topic_names=[TASKS] if epoch == _JOIN else None,
            )
        except (OSError, TimeoutError):
            self._coordinator = None
            return
        code = response.error_code
        if code is ErrorCode.none:
            self._epoch = response.member_epoch
            if response.assignment is not None:
                self._take_assignment(response.assignment)
        elif code in _REJOIN:
            self._epoch, self._assigned = _JOIN, frozenset()
        elif code in COORDINATOR_AGAIN:
            self._coordinator = None
        else:
            raise Violation(f"a member of a share group got {code.name}")

    def _take_assignment(self, assignment: Any) -> None:
        self._assigned = frozenset(
            index for topic in assignment.topic_partitions for index in topic.partitions
        )

    # ------------------------------------------------------------- work

    async def _work(self) -> None:
        """Fetch once, from the leader of some of its partitions."""
        leaders: dict[Address, set[int]] = defaultdict(set)
        for index in sorted(self._assigned):
            where = self._wire.leader(TASKS, index)
            if where is not None:
                leaders[where].add(index)
        places = sorted(set(leaders) | {one for one, known in self._sessions.items() if known.due})
        if not places:
            await asyncio.sleep(0.3)
            return
        where = self._rng.choice(places)
        session = self._sessions[where]
        if session.due and (session.is_renewing or self._rng.random() < 0.5):
            await self._acknowledge(where, session)
        else:
            await self._fetch(where, session, leaders.get(where, set()))
        await asyncio.sleep(self._rng.expovariate(1 / self._pace_s))

    async def _fetch(self, where: Address, session: _Session, wanted: set[int]) -> None:
        is_first = session.epoch == _INITIAL
        if is_first and not wanted:
            return
        due = self._take_due(session)
        added = wanted if is_first else wanted - session.partitions
        forgotten = set() if is_first else session.partitions - wanted
        session.partitions = set(wanted)
        module = schema(*_FETCH).request_module
        response = await self._exchange(
            where,
            _FETCH,
            "ShareFetchRequest",
            due,
            session_epoch=session.epoch,
            max_wait=WAIT_MS,
            min_bytes=1,
            max_bytes=_SIZE,
            max_records=self._rng.choice([1, 10, 100]) if not self._is_tidy else 500,
            batch_size=self._rng.choice([1, 10, 100]),
            share_acquire_mode=self._rng.choice([0, 0, 1]),
            topics=self._topics(module, "Fetch", due, added),
            forgotten_topics_data=[
                entity(
                    module,
                    "ForgottenTopic",
                    topic_id=self._topic_id,
                    partitions=sorted(forgotten),
                )
            ]
            if forgotten
            else [],
        )
        if response is None:
            return
        session.epoch += 1
        for index, found in _partitions(response):
            self._confirm(due, index, ErrorCode(found.acknowledge_error_code))
            if found.error_code is ErrorCode.none:
                self._take_records(where, session, index, found)
            elif found.error_code not in _ELSEWHERE:
                raise Violation(f"a member of a share group fetched {found.error_code.name}")

    async def _acknowledge(
        self, where: Address, session: _Session, *, is_last: bool = False
    ) -> None:
        is_renewing = session.is_renewing
        due = self._take_due(session)
        renewed = [one for one in due if AcknowledgeType.RENEW in one.types.values()]
        module = schema(*_ACKNOWLEDGE).request_module
        response = await self._exchange(
            where,
            _ACKNOWLEDGE,
            "ShareAcknowledgeRequest",
            due,
            session_epoch=_FINAL if is_last else session.epoch,
            is_renew_ack=is_renewing,
            topics=self._topics(module, "Acknowledge", due),
        )
        if response is None:
            return
        session.epoch += 1
        for index, found in _partitions(response):
            self._confirm(due, index, found.error_code)
        for one in renewed:
            self._decide(session, one)

    async def _exchange(
        self,
        where: Address,
        api: tuple[int, int],
        name: str,
        due: Iterable[Verdict],
        *,
        session_epoch: int,
        **fields: Any,
    ) -> Any:
        """Send a request of a share session; None if the session is lost with it."""
        try:
            response = await self._wire.send(
                *(where, *api, name),
                group_id=self._group_id,
                member_id=self._id,
                share_session_epoch=session_epoch,
                **fields,
            )
        except (OSError, TimeoutError):
            self._sessions.pop(where, None)
            return None
        if response.error_code is ErrorCode.none:
            return response
        self._sessions.pop(where, None)
        if response.error_code not in _SESSION_LOST:
            raise Violation(f"a share session ended by {response.error_code.name}")
        for verdict in due:
            self._world.share_judge.refused(verdict)
        return None

    async def _close(self, where: Address) -> None:
        session = self._sessions[where]
        if session.epoch != _INITIAL:
            await self._acknowledge(where, session, is_last=True)

    # ------------------------------------------------------------- records and verdicts

    @property
    def _topic_id(self) -> UUID:
        return UUID(self._world.oracle.state.topics[TASKS].topic_id)

    def _key(self, index: int) -> SharePartitionKey:
        return SharePartitionKey(self._group_id, self._topic_id.bytes, index)

    def _take_records(self, where: Address, session: _Session, index: int, found: Any) -> None:
        """Check what was delivered, and decide on it."""
        world = self._world
        known = world.oracle.state.topics[TASKS]
        data = memoryview(found.records or b"")
        offsets: set[int] = set()
        for place, header in iter_headers(data):
            batch = data[place : place + header.size]
            world.ledger.saw(known.partitions[index], [batch], header.base_offset)
            offsets.update(range(header.base_offset, header.end_offset))
        process = world.process_at(where)
        for one in found.acquired_records:
            acquired = AcquiredRecords(one.first_offset, one.last_offset, one.delivery_count)
            if not offsets.issuperset(range(one.first_offset, one.last_offset + 1)):
                raise Violation(f"records of {acquired} are not in the response")
            epoch = world.share_judge.delivered(process, self._key(index), self._id, acquired)
            verdict = Verdict(self._key(index), self._id, {}, {}, epoch)
            for offset in range(one.first_offset, one.last_offset + 1):
                verdict.counts[offset] = one.delivery_count
            self._decide(session, verdict)

    def _decide(self, session: _Session, delivered: Verdict) -> None:
        """Decide on records that were delivered: at once, late, or never."""
        rng = self._rng
        types = dict.fromkeys(delivered.counts, AcknowledgeType.ACCEPT)
        if not self._is_tidy:
            fate = rng.random()
            if fate < 0.07:
                return  # the lock will end
            if fate < 0.12:
                types = dict.fromkeys(types, AcknowledgeType.RENEW)
            elif fate < 0.6:
                types = {offset: self._verdict() for offset in types}
        verdict = Verdict(delivered.key, self._id, types, delivered.counts, delivered.state_epoch)
        delay_s = 0.0
        if not self._is_tidy and rng.random() < 0.1:
            delay_s = rng.uniform(0.0, 1.5 * self._lock_s)
        asyncio.get_running_loop().call_later(delay_s, session.take, verdict)

    def _verdict(self) -> AcknowledgeType:
        return self._rng.choices(
            [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT], [6, 3, 1]
        )[0]

    def _take_due(self, session: _Session) -> list[Verdict]:
        """Return the verdicts to send: the last one on each record."""
        due, session.due = session.due, []
        named: set[tuple[int, int]] = set()
        for verdict in reversed(due):
            index = verdict.key.partition
            for offset in list(verdict.types):
                if (index, offset) in named:
                    del verdict.types[offset]
                named.add((index, offset))
        for verdict in due:
            self._world.share_judge.sent(verdict)
        return due

    def _confirm(self, due: Iterable[Verdict], index: int, code: ErrorCode) -> None:
        """Take note of the outcome of the verdicts on a partition: all of them count, or none."""
        verdicts = [one for one in due if one.key.partition == index]
        if verdicts and code not in {ErrorCode.none} | _ELSEWHERE | _REFUSED:
            raise Violation(f"an acknowledgement got {code.name}")
        judge = self._world.share_judge
        for verdict in verdicts:
            if code is ErrorCode.none:
                judge.confirm(verdict)
            elif code in _REFUSED:
                judge.refused(verdict)

    def _topics(
        self, module: Any, kind: str, due: Iterable[Verdict], added: Collection[int] = ()
    ) -> list[Any]:
        """Return partitions as a request names them, with verdicts."""
        by_index: dict[int, dict[int, AcknowledgeType]] = {index: {} for index in added}
        for verdict in due:
            by_index.setdefault(verdict.key.partition, {}).update(verdict.types)
        partitions = [
            entity(
                module,
                f"{kind}Partition",
                partition_index=index,
                acknowledgement_batches=[
                    entity(
                        module,
                        "AcknowledgementBatch",
                        first_offset=first_offset,
                        last_offset=last_offset,
                        acknowledge_types=list(types),
                    )
                    for first_offset, last_offset, types in ranges(by_index[index])
                ],
            )
            for index in sorted(by_index)
        ]
        if not partitions:
            return []
        return [entity(module, f"{kind}Topic", topic_id=self._topic_id, partitions=partitions)]


def _partitions(response: Any) -> Iterable[tuple[int, Any]]:
    """Return the partitions of a response, by index."""
    return [(one.partition_index, one) for topic in response.responses for one in topic.partitions]
