"""Fetch (key 1), versions 4 to 18.

4 isolation level (KIP-98) · 5 log start offset · 7 sessions · 9 leader epoch · 11 rack · 12
compact, diverging epochs, current leader (KIP-951) · 13 topic ids · 15 replica state as a tag · 16
endpoint of the leader · 17, 18 fields of followers.

Data in the log cache is sent at once, without a task. A request with too little data waits for the
high watermarks of its partitions or its deadline. Cold partitions are read from objects in the
background: the request waits for them until its deadline, or shortly if other partitions have data;
data that comes later is in the block cache for the next request. A cold read first waits for memory
(`RequestMemory`); the less is left of it, the less a response brings. A node that cannot be sure
that it still leads reads the metadata before it responds. A request with many partitions is read
and encoded in turns, between which other work goes on.

A consumer that says its rack is sent to a node of that rack (KIP-392), if `replica.selector.class`
is set: the response names the node and has no records. That node serves it from a read replica
(`lakehead.broker.cluster.read_replicas`). A request for a replica that is not open yet, or lags
behind, waits; at its deadline OFFSET_NOT_AVAILABLE sends the consumer back to the leader.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import STEPS_AT_ONCE, elements_max
from lakehead.broker.cluster.metadata_image import hint_for
from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.network.connection import Connection, Slot
from lakehead.broker.partition.cold_reads import UploadWaits, spared
from lakehead.broker.partition.fetch_session import FetchPlan, Wanted
from lakehead.broker.partition.partition import Partition, Topic
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame, error_code
from lakehead.broker.protocol.fetch import (
    TOPIC_IDS,
    FetchPartition,
    FetchRequest,
    PartitionResult,
    ResponseWriter,
    parse,
)
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.broker.protocol.produce import TopicKey
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_TOPIC
from lakehead.broker.services import FetchedTo
from lakehead.storage.errors import StorageError
from lakehead.storage.format.record_batch import iter_headers, read_header
from lakehead.storage.memory_pool import PoolWait

API = Api(key=1, name="Fetch", versions=(4, 18), is_at_once=True, access=(READ_TOPIC,))

COLD_GRACE_S = 0.1
"""Time that a request with data for some partitions waits for its cold ones, in seconds."""
_KNOWN_SHARE, _NEW_SHARE = 0.75, 0.5
"""Shares of the memory for responses that cold reads may use: for clients that have taken records
before, and for others. Unknown clients leave room for clients that read.
"""
READ_COMMITTED = 1
WAIT_MAX_MS = 3_600_000
PARSED_INLINE_MAX = 64 << 10
"""Longer requests are parsed off the event loop."""
FAN_OUT = 3
"""As many consumers that wait for one partition get their responses at intervals."""
FAN_OUT_PAUSE_S = 0.005
"""The least time between two responses with records to one of these consumers. Each response has
more batches then, which costs the node and the consumers less.
"""
COLD_READS_MAX = 256
"""Partitions that one request reads from the object store at once: many may have few bytes each."""
AGAIN_S = 0.02
"""Pause before a request that was woken while it was read in turns is read again."""

_FRAME_SIZE, _PARTITION_SIZE = 20, 40
"""Bytes of a response beside its records, as quotas count them."""

Records = Sequence[memoryview]


def start(frame: memoryview, header: RequestHeader, context: RequestContext) -> bool:
    """Start a request; see `FrameHandler`. Raises MalformedFrame."""
    elements = elements_max(context.services, API)
    connection: Connection = context.connection
    slot = connection.slot()
    if len(frame) > PARSED_INLINE_MAX:
        work = _start_aside(frame, header, context, slot, elements)
        slot.cancel = context.services.scope.spawn_apart(
            work,
            name="parse a long Fetch",
            on_error=partial(context.services.crashed, connection),
        ).cancel
        return True
    _begin(parse(frame, header.body, header.version, elements), header, context, slot)
    return True


async def _start_aside(
    frame: memoryview, header: RequestHeader, context: RequestContext, slot: Slot, elements: int
) -> None:
    """Parse a long request off the event loop, then begin."""
    loop = asyncio.get_running_loop()
    try:
        work = parse if context.quota is None else context.quota.aside(parse)
        request = await loop.run_in_executor(
            None, work, frame, header.body, header.version, elements
        )
    except (MalformedFrame, struct.error) as error:
        context.services.rejected(slot.connection, str(error))
        return
    slot.cancel = None
    if slot.connection.is_open:
        _begin(request, header, context, slot)


def _begin(
    request: FetchRequest, header: RequestHeader, context: RequestContext, slot: Slot
) -> None:
    try:
        plan = context.services.fetch_sessions.plan(request, by_id=header.version >= TOPIC_IDS)
    except KafkaError as error:
        writer = ResponseWriter(header.version)
        writer.begin(int(error.code), 0, 0)
        slot.complete(writer.finish(header.correlation_id))
        return
    FetchCall(context, header, request, plan, slot).begin()


class FetchCall:
    """One request at work."""

    def __init__(
        self,
        context: RequestContext,
        header: RequestHeader,
        request: FetchRequest,
        plan: FetchPlan,
        slot: Slot,
    ) -> None:
        self._services = context.services
        self._quota = context.quota
        self._address_of = context.address_of
        self._may = context.may
        self._allowed: dict[str, bool] = {}
        """By topic, as of the present evaluation: rules may change while a request waits."""
        self._header = header
        self._request = request
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._plan = plan
        self._slot = slot
        self._max_bytes = min(
            request.max_bytes,
            context.services.settings.fetch_max_bytes,
            context.services.memory.response_size_max(),
        )
        if context.quota is not None:
            self._max_bytes = min(self._max_bytes, context.quota.fetch_bytes_max())
        self._cold_share = _KNOWN_SHARE if context.connection.has_fetched else _NEW_SHARE
        self._reserved = 0
        self._room_wait: PoolWait | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._watched: dict[Partition, None] = {}
        self._opening: dict[tuple[Topic, int], None] = {}
        """Read replicas that the request waits for."""
        self._is_near = (
            bool(request.rack_id)
            and request.rack_id == context.services.settings.broker_rack
            and context.services.replica_selector.is_enabled
        )
        """True if this node may serve what it does not lead to the client."""
        self._fetched_to = _fetched_to(request, context)
        self._is_scheduled = False
        self._is_finished = False
        self._is_long = len(plan.partitions) > STEPS_AT_ONCE
        self._is_in_turns = False
        self._is_woken = False
        self._read_size = 0
        self._left_out = 0
        """Bytes that the limits of partitions still allow where the next batch does not fit."""
        self._is_settled = False
        self._is_late = False
        self._cold_pending: set[Wanted] = set()
        self._cold_bytes = 0
        self._cold_ready: dict[Wanted, Records | StorageError] = {}
        self._uploads: UploadWaits | None = None
        """Kept until the request stops: it leads back here, and garbage would hold records."""
        self._results: list[tuple[Wanted, PartitionResult]] = []
        self._endpoints: dict[int, NodeEndpoint] = {}
        self._is_cut_off = False
        """True if the node does not know that it was not fenced: it sends no response as a
        leader.
        """

    def begin(self) -> None:
        """Respond at once, or begin to wait."""
        wait_ms = min(self._request.max_wait_ms, WAIT_MAX_MS)
        self._is_late = wait_ms <= 0 or not self._plan.partitions
        self._evaluate()
        if self._is_finished:
            return
        self._slot.cancel = self._stop
        if not self._is_late:
            self._timers.append(self._after(wait_ms / 1000, self._expired))

    def _spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._services.scope.spawn_apart(coro, name=name, on_error=self._crash)

    def _crash(self, error: Exception) -> None:
        self._stop()
        self._services.crashed(self._slot.connection, error)

    def _evaluate(self) -> None:
        """Read the available data, and respond if it is enough. An error ends this request alone,
        also when the loop calls this.
        """
        try:
            if self._quota is None:
                self._evaluate_now()
            else:
                with self._quota:
                    self._evaluate_now()
        except Exception as error:  # noqa: BLE001  # the root of a request that waits
            self._crash(error)

    def _evaluate_now(self) -> None:
        self._is_scheduled = False
        if self._is_finished:
            return
        if self._is_in_turns:
            self._is_woken = True
            return
        if not self._is_cut_off and not self._services.session.is_current():
            self._spawn(self._confirm(), name="confirm leadership")
            return
        self._max_bytes = min(self._max_bytes, self._services.memory.response_size_max())
        if self._is_long:
            self._watch()  # what comes while others are read is not missed
            self._is_in_turns = True
            self._spawn(self._read_in_turns(), name="fetch in turns")
            return
        for _ in self._read():
            pass
        self._conclude()

    async def _read_in_turns(self) -> None:
        for _ in self._timed(self._read()):
            await asyncio.sleep(0)
            if self._is_finished:
                return
        self._is_in_turns = False
        if self._is_cut_off or self._services.session.is_current():
            self._conclude()
        else:
            self._evaluate()
        if self._is_woken and not self._is_finished:
            self._is_woken = False
            self._timers.append(self._after(AGAIN_S, self._evaluate))

    def _conclude(self) -> None:
        """Respond if the data that was read is enough."""
        size, is_settled = self._read_size, self._is_settled
        if self._cold_pending or self._room_wait is not None:
            if size and self._is_late:
                self._finish()
            elif size:
                self._timers.append(self._after(COLD_GRACE_S, self._expired))
            return
        if is_settled or self._is_late or self._is_enough():
            self._finish()
        else:
            self._watch()

    def _is_enough(self) -> bool:
        """Return true if the client waits for no more. Whole batches may not add up to the limits,
        but Kafka cuts the last one: a partition that has more counts with all that it may have.
        """
        size, least = self._read_size, min(self._request.min_bytes, self._max_bytes)
        return size >= least or (size > 0 and size + self._left_out >= least)

    async def _confirm(self) -> None:
        self._is_cut_off = not await self._services.session.ensure()
        self._evaluate()

    def _expired(self) -> None:
        """Respond with the available data; if there is none, not before the first cold read
        ends.
        """
        self._is_late = True
        self._evaluate()

    def _after(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def _watch(self) -> None:
        self._note("waits for records")
        if self._watched and not self._is_near:
            return
        for wanted in self._plan.partitions:
            partition = self._found(wanted)
            if partition is not None and partition not in self._watched:
                partition.wait(self._wake)
                self._watched[partition] = None

    def _found(self, wanted: Wanted) -> Partition | None:
        """Return a partition that is led here, or served as a read replica."""
        topic = self._services.topics.find(wanted.key)
        if topic is None:
            return None
        index = wanted.want.partition
        led = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
        if led is not None or not self._is_near:
            return led
        return self._services.read_replicas.find(topic, index)

    def _note(self, event: str) -> None:
        if self._slot.timing is not None:
            self._slot.timing.note(event)

    def _wake(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        connection: Connection = self._slot.connection
        pause = connection.fetched_at + FAN_OUT_PAUSE_S - loop.time()
        if pause > 0 and any(len(one.waiters) >= FAN_OUT for one in islice(self._watched, 1)):
            self._timers.append(self._after(pause, self._evaluate))
        else:
            loop.call_soon(self._evaluate)

    def _stop(self) -> None:
        """Wait for nothing any more."""
        self._is_finished = True
        if self._uploads is not None:
            self._uploads.close()
            self._uploads = None
        for timer in self._timers:
            timer.cancel()
        for partition in self._watched:
            partition.unwait(self._wake)
        for topic, index in self._opening:
            self._services.read_replicas.stop_waiting(topic, index, self._wake)
        responses = self._services.memory.responses
        if self._room_wait is not None:
            responses.leave(self._room_wait)
            self._room_wait = None
        reserved, self._reserved = self._reserved, 0
        responses.give_back(reserved)

    # Reading.

    def _read(self) -> Iterator[None]:
        """Read every partition; note the bytes, and whether there is something to say at once.
        Yields where other work may go on.
        """
        size, is_settled = 0, False
        self._left_out = 0
        self._allowed.clear()
        results = self._results = []
        for number, wanted in enumerate(self._plan.partitions, 1):
            if not number % STEPS_AT_ONCE:
                yield
            result = self._read_partition(wanted, self._max_bytes - size, size == 0)
            size += sum(map(len, result.records))
            is_settled = (
                is_settled
                or bool(result.error)
                or result.diverging is not None
                or result.read_replica >= 0
            )
            results.append((wanted, result))
        self._read_size, self._is_settled = size, is_settled

    def _read_partition(self, wanted: Wanted, room: int, is_first: bool) -> PartitionResult:
        want = wanted.want
        topic = self._services.topics.find(wanted.key)
        try:
            partition = self._partition(topic, wanted)
            if partition is None:
                return PartitionResult(want.partition, 0, -1, -1, -1)
            diverging = self._diverging(partition, want)
            if diverging is None:
                self._check_offset(partition, want.fetch_offset)
            high_watermark, stable = partition.high_watermark, partition.last_stable_offset
            end = stable if self._is_committed else high_watermark
            read_replica = -1 if diverging is not None else self._read_replica(partition, want)
            records: Records = ()
            if diverging is None and read_replica < 0 and want.fetch_offset < end:
                found = self._records(wanted, partition, min(want.max_bytes, room), is_first)
                records, has_more = _below(end, found)
                if has_more:
                    self._left_out += max(want.max_bytes - sum(map(len, records)), 0)
        except (KafkaError, StorageError) as error:
            return self._failed(topic, want, error)
        return PartitionResult(
            want.partition,
            0,
            high_watermark,
            stable,
            partition.log_start_offset,
            records,
            aborted=_aborted(partition, records) if self._is_committed else None,
            diverging=diverging,
            read_replica=read_replica,
        )

    def _check_offset(self, partition: Partition, offset: int) -> None:
        """Refuse an offset that the log does not have. One that a read replica, or a standby, does
        not have yet is waited for.
        """
        if partition.log_start_offset <= offset <= partition.log_end_offset:
            return
        is_here = partition.topic.partitions[partition.index] is partition
        is_led = is_here and not self._services.settings.standby
        if is_led or offset < partition.log_start_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        if self._is_late:
            raise KafkaError(ErrorCode.offset_not_available)

    def _read_replica(self, partition: Partition, want: FetchPartition) -> int:
        """Return the node of its rack that the client is to fetch from; -1: this one."""
        services, rack = self._services, self._request.rack_id
        if not rack or partition.topic.partitions[partition.index] is not partition:
            return -1
        stream = services.state.streams.get(partition.stream.stream_id)
        node = None if stream is None else services.replica_selector.in_rack(stream, rack)
        if node is None or node.node_id == services.node_id or self._address_of(node) is None:
            return -1
        has_tail = services.settings.replica_read_tail != TailSource.OBJECTS
        if want.fetch_offset > partition.stream.committed_offset and not has_tail:
            return -1  # it would wait there for what it gets here at once
        return node.node_id

    def _failed(
        self, topic: Topic | None, want: FetchPartition, error: Exception
    ) -> PartitionResult:
        code = error_code(error)
        leader = None
        if code in {ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}:
            services = self._services
            hint = hint_for(
                services.state, topic, want.partition, services.node_id, self._address_of
            )
            if hint is not None:
                leader, endpoint = hint
                self._endpoints[endpoint.node_id] = endpoint
        return PartitionResult(want.partition, int(code), -1, -1, -1, leader=leader)

    def _partition(self, topic: Topic | None, wanted: Wanted) -> Partition | None:
        """Return a partition to read from; None: a read replica that is being opened."""
        want = wanted.want
        name = wanted.key if topic is None else topic.name
        if isinstance(name, bytes):
            raise KafkaError(ErrorCode.unknown_topic_id)
        if not self._may_read(name):
            raise KafkaError(READ_TOPIC.error)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if self._is_cut_off:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        try:
            partition: Partition | None = topic.served(want.partition)
        except KafkaError as error:
            if not self._is_near or error.code is not ErrorCode.not_leader_or_follower:
                raise
            partition = self._replica(topic, want.partition)
        if partition is not None:
            partition.check_epoch(want.current_leader_epoch)
        return partition

    def _replica(self, topic: Topic, index: int) -> Partition | None:
        """Return a read replica; None while it is being opened."""
        services = self._services
        stream = services.state.streams.get(topic.stream_ids[index])
        rack = self._request.rack_id
        if stream is None or services.replica_selector.in_rack(stream, rack) is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        partition = services.read_replicas.get(topic, index, self._wake)
        if partition is None:
            self._opening[topic, index] = None
            if self._is_late:
                raise KafkaError(ErrorCode.offset_not_available)
        return partition

    def _may_read(self, name: str) -> bool:
        is_allowed = self._allowed.get(name)
        if is_allowed is None:
            is_allowed = self._allowed[name] = self._may(READ_TOPIC, name)
        return is_allowed

    @staticmethod
    def _diverging(partition: Partition, want: FetchPartition) -> tuple[int, int] | None:
        if want.last_fetched_epoch < 0:
            return None
        epoch, end_offset = partition.end_offset_for_epoch(want.last_fetched_epoch)
        if epoch < 0 or want.fetch_offset < partition.log_start_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        if epoch < want.last_fetched_epoch or end_offset < want.fetch_offset:
            return epoch, end_offset
        return None

    def _records(self, wanted: Wanted, partition: Partition, room: int, is_first: bool) -> Records:
        """Return batches for one partition; none when they are cold and not here yet."""
        offset = wanted.want.fetch_offset
        if room <= 0 and not is_first:
            return ()
        ready = self._cold_ready.get(wanted)
        if isinstance(ready, StorageError):
            raise ready
        found = partition.stream.fetch_cached(offset, room) if ready is None else ready
        if found is None:
            read = partition.stream.fetch_read(offset, room)
            if read is None:
                self._read_cold(wanted, partition, room)
                return ()
            found = spared(read)
        if not is_first and found and sum(map(len, found)) > room:
            return ()
        return found

    def _read_cold(self, wanted: Wanted, partition: Partition, room: int) -> None:
        room = partition.stream.stored_size(wanted.want.fetch_offset, room)
        pending = self._cold_pending
        is_full = self._cold_bytes + room > self._max_bytes or len(pending) >= COLD_READS_MAX
        if wanted in pending or (pending and is_full) or (self._is_late and self._cold_ready):
            return
        if self._uploads is None:
            self._uploads = UploadWaits(self._services.cold_reads, self._wake)
        if self._uploads.is_due(partition.stream, wanted.want.fetch_offset):
            return
        if not self._has_memory(room):
            return
        pending.add(wanted)
        self._note("reads from the object store")
        self._cold_bytes += room
        task = self._services.cold_reads.start(partition.stream, wanted.want.fetch_offset, room)
        task.add_done_callback(partial(self._cold_done, wanted))

    def _has_memory(self, room: int) -> bool:
        """Reserve memory for a cold read; if there is none, it is tried again when there is."""
        if self._cold_bytes + room <= self._reserved:
            return True
        responses = self._services.memory.responses
        if self._room_wait is None and responses.try_take(room, self._cold_share):
            self._reserved += room
            return True
        if self._room_wait is None:
            self._room_wait = responses.wait(
                room, self._cold_share, partial(self._memory_came, room)
            )
        return False

    def _memory_came(self, room: int) -> None:
        self._room_wait = None
        self._reserved += room
        self._wake()

    def _cold_done(self, wanted: Wanted, task: asyncio.Task[Records | StorageError]) -> None:
        self._cold_pending.discard(wanted)
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                if not self._is_finished:
                    self._crash(error)
                return
            self._cold_ready[wanted] = task.result()
            self._note("has read from the object store")
        if not self._cold_pending or self._is_late:
            self._wake()

    # Answering.

    def _finish(self) -> None:
        self._is_finished = True
        if self._is_long:
            self._slot.cancel = self._spawn(
                self._respond_in_turns(), name="serve a fetch in turns"
            ).cancel
            return
        try:
            for _ in self._respond():
                pass
        finally:  # by now what the client does not take at once is charged to the response
            self._stop()

    async def _respond_in_turns(self) -> None:
        try:
            for _ in self._timed(self._respond()):
                await asyncio.sleep(0)
        finally:
            self._stop()

    def _timed(self, work: Iterator[None]) -> Iterator[None]:
        """Yield as work does; its time counts where that is limited."""
        quota = self._quota
        if quota is None:
            yield from work
            return
        while True:
            with quota:
                if next(work, self) is self:
                    return
            yield

    def _respond(self) -> Iterator[None]:
        """Put the response together and give it. Yields where other work may go on."""
        plan, session, throttle_ms, redirected = self._plan, self._plan.session, 0, 0
        if self._quota is not None:
            throttle_ms, sends_records = self._quota.fetched(self._response_size())
            if not sends_records:
                self._respond_without_records(throttle_ms)
                return
        topics: dict[TopicKey, list[PartitionResult]] = {}
        for number, (wanted, result) in enumerate(self._results, 1):
            if not number % STEPS_AT_ONCE:
                yield
            if plan.incremental and not wanted.is_news(result):
                continue
            if session is not None:
                session.sent(wanted, result)
            if result.records:
                self._count(wanted, result)
            redirected += result.read_replica >= 0
            topics.setdefault(wanted.key, []).append(result)
        writer = ResponseWriter(self._header.version)
        session_id = 0 if session is None else session.session_id
        writer.begin(0, session_id, len(topics), throttle_ms)
        number = 0
        for key, results in topics.items():
            writer.begin_topic(key, len(results))
            for result in results:
                writer.partition(result)
                number += 1
                if not number % STEPS_AT_ONCE:
                    yield
            writer.end_topic()
        counts = self._services.counts
        counts.fetched(len(self._results))
        counts.sent(self._fetched_to, self._read_size)
        counts.redirected(redirected)
        endpoints = self._endpoints.values()
        connection: Connection = self._slot.connection
        if self._has_records():
            connection.fetched_at = asyncio.get_running_loop().time()
        self._slot.complete(writer.finish(self._header.correlation_id, endpoints))

    def _response_size(self) -> int:
        """Return about how long the response will be."""
        news = sum(bool(result.records or result.error) for _, result in self._results)
        return self._read_size + _FRAME_SIZE + _PARTITION_SIZE * news

    def _respond_without_records(self, throttle_ms: int) -> None:
        """Respond to a throttled client: it fetches the same again after that time (KIP-219). A new
        session is given up, as in Kafka.
        """
        plan, session_id = self._plan, 0
        if plan.session is not None:
            if plan.incremental:
                session_id = plan.session.session_id
            else:
                self._services.fetch_sessions.drop(plan.session)
        writer = ResponseWriter(self._header.version)
        writer.begin(0, session_id, 0, throttle_ms)
        self._slot.complete(writer.finish(self._header.correlation_id))

    def _has_records(self) -> bool:
        return any(result.records for _, result in self._results)

    def _count(self, wanted: Wanted, result: PartitionResult) -> None:
        partition = self._services.topics.partition(wanted.key, result.partition)
        if partition is not None:
            partition.count_sent(sum(map(len, result.records)))


def _fetched_to(request: FetchRequest, context: RequestContext) -> FetchedTo:
    """Return where the records of a response go."""
    own = context.services.settings.broker_rack
    if context.is_from_node:
        return FetchedTo.NODE
    if not own or not request.rack_id:
        return FetchedTo.UNKNOWN
    return FetchedTo.SAME_ZONE if request.rack_id == own else FetchedTo.OTHER_ZONE


def _below(end: int, batches: Records) -> tuple[Records, bool]:
    """Return the batches that end at or below an offset, and whether more follow up to there.
    Objects may have batches beyond: those of a transaction that is open, and those that a read
    replica has yet to learn of.
    """
    count, reached = len(batches), -1
    while count:
        reached = read_header(batches[count - 1]).end_offset
        if reached <= end:
            break
        count -= 1
    return batches[:count], not count or reached < end


def _aborted(partition: Partition, batches: Records) -> Sequence[tuple[int, int]]:
    """Return (producer id, first offset) of the aborted transactions that have records or their
    marker in these batches. One of which compaction has left nothing may have no marker any more: a
    consumer that knew of it would wait for that, and take what its producer committed since for
    aborted.
    """
    if not batches:
        return ()
    start, end = read_header(batches[0]).base_offset, read_header(batches[-1]).end_offset
    found = partition.aborted_among(start, end)
    if not found:
        return ()
    written: dict[int, list[int]] = {}
    for piece in batches:
        for _, header in iter_headers(piece):
            if header.is_transactional and header.record_count:
                written.setdefault(header.producer_id, []).append(header.base_offset)
    return [
        (entry.producer_id, entry.first_offset)
        for entry in found
        if any(
            entry.first_offset <= offset <= entry.last_offset
            for offset in written.get(entry.producer_id, ())
        )
    ]
