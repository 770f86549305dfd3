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
and encoded in turns, between which other work goes on. Left out: replicas (brokers copy nothing
from each other), preferred read replicas (only leaders serve).
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import STEPS_AT_ONCE, elements_max
from lakehead.broker.cluster.metadata_image import hint_for
from lakehead.broker.network.connection import Connection, Slot
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
from lakehead.storage.errors import StorageError
from lakehead.storage.format.record_batch import iter_headers, read_header
from lakehead.storage.memory_pool import PoolWait

API = Api(key=1, name="Fetch", versions=(4, 18), is_at_once=True)

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
AGAIN_S = 0.02
"""Pause before a request that was woken while it was read in turns is read again."""

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
        request = await loop.run_in_executor(
            None, parse, frame, header.body, header.version, elements
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
        self._address_of = context.address_of
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
        self._cold_share = _KNOWN_SHARE if context.connection.has_fetched else _NEW_SHARE
        self._reserved = 0
        self._room_wait: PoolWait | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._watched: list[Partition] = []
        self._is_scheduled = False
        self._is_finished = False
        self._is_long = len(plan.partitions) > STEPS_AT_ONCE
        self._is_in_turns = False
        self._is_woken = False
        self._read_size = 0
        self._is_settled = False
        self._is_late = False
        self._cold_pending: set[Wanted] = set()
        self._cold_bytes = 0
        self._cold_ready: dict[Wanted, Records | StorageError] = {}
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
        if self._is_long:
            self._watch()  # what comes while others are read is not missed
            self._is_in_turns = True
            self._spawn(self._read_in_turns(), name="fetch in turns")
            return
        for _ in self._read():
            pass
        self._conclude()

    async def _read_in_turns(self) -> None:
        for _ in self._read():
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
        if is_settled or self._is_late or size >= self._request.min_bytes:
            self._finish()
        else:
            self._watch()

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
        if self._watched:
            return
        for wanted in self._plan.partitions:
            partition = self._services.topics.partition(wanted.key, wanted.want.partition)
            if partition is not None:
                partition.wait(self._wake)
                self._watched.append(partition)

    def _wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._evaluate)

    def _stop(self) -> None:
        """Wait for nothing any more."""
        self._is_finished = True
        for timer in self._timers:
            timer.cancel()
        for partition in self._watched:
            partition.unwait(self._wake)
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
        results = self._results = []
        for number, wanted in enumerate(self._plan.partitions, 1):
            if not number % STEPS_AT_ONCE:
                yield
            result = self._read_partition(wanted, self._max_bytes - size, size == 0)
            size += sum(map(len, result.records))
            is_settled = is_settled or bool(result.error) or result.diverging is not None
            results.append((wanted, result))
        self._read_size, self._is_settled = size, is_settled

    def _read_partition(self, wanted: Wanted, room: int, is_first: bool) -> PartitionResult:
        want = wanted.want
        topic = self._services.topics.find(wanted.key)
        try:
            partition = self._partition(topic, want)
            diverging = self._diverging(partition, want)
            if not partition.log_start_offset <= want.fetch_offset <= partition.log_end_offset:
                raise KafkaError(ErrorCode.offset_out_of_range)
            high_watermark, stable = partition.high_watermark, partition.last_stable_offset
            end = stable if self._is_committed else high_watermark
            records: Records = ()
            if diverging is None and want.fetch_offset < end:
                records = self._records(wanted, partition, min(want.max_bytes, room), is_first)
                records = _below(end, records) if end < high_watermark else records
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
        )

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

    def _partition(self, topic: Topic | None, want: FetchPartition) -> Partition:
        if topic is None:
            by_id = self._header.version >= TOPIC_IDS
            raise KafkaError(
                ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
            )
        if self._is_cut_off:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        partition = topic.served(want.partition)
        partition.check_epoch(want.current_leader_epoch)
        return partition

    @staticmethod
    def _diverging(partition: Partition, want: FetchPartition) -> tuple[int, int] | None:
        if want.last_fetched_epoch < 0:
            return None
        epoch, end_offset = partition.end_offset_for_epoch(want.last_fetched_epoch)
        if epoch < 0:
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
            self._read_cold(wanted, partition, room)
            return ()
        if not is_first and found and sum(map(len, found)) > room:
            return ()
        return found

    def _read_cold(self, wanted: Wanted, partition: Partition, room: int) -> None:
        pending, is_full = self._cold_pending, self._cold_bytes + room > self._max_bytes
        if wanted in pending or (pending and is_full) or (self._is_late and self._cold_ready):
            return
        if not self._has_memory(room):
            return
        pending.add(wanted)
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
        if not self._cold_pending or self._is_late:
            self._wake()

    # Answering.

    def _finish(self) -> None:
        self._is_finished = True
        if self._is_long:
            self._slot.cancel = self._spawn(
                self._answer_in_turns(), name="serve a fetch in turns"
            ).cancel
            return
        try:
            for _ in self._answer():
                pass
        finally:  # by now what the client does not take at once is charged to the response
            self._stop()

    async def _answer_in_turns(self) -> None:
        try:
            for _ in self._answer():
                await asyncio.sleep(0)
        finally:
            self._stop()

    def _answer(self) -> Iterator[None]:
        """Put the response together and give it. Yields where other work may go on."""
        plan, session = self._plan, self._plan.session
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
            topics.setdefault(wanted.key, []).append(result)
        writer = ResponseWriter(self._header.version)
        writer.begin(0, 0 if session is None else session.session_id, len(topics))
        number = 0
        for key, results in topics.items():
            writer.begin_topic(key, len(results))
            for result in results:
                writer.partition(result)
                number += 1
                if not number % STEPS_AT_ONCE:
                    yield
            writer.end_topic()
        self._services.fetched(len(self._results))
        endpoints = self._endpoints.values()
        connection: Connection = self._slot.connection
        connection.has_fetched = connection.has_fetched or self._has_records()
        self._slot.complete(writer.finish(self._header.correlation_id, endpoints))

    def _has_records(self) -> bool:
        return any(result.records for _, result in self._results)

    def _count(self, wanted: Wanted, result: PartitionResult) -> None:
        partition = self._services.topics.partition(wanted.key, result.partition)
        if partition is not None:
            partition.bytes_out += sum(map(len, result.records))


def _below(end: int, batches: Records) -> Records:
    """Return the batches that lie below an offset; none lies across it."""
    count = len(batches)
    while count and read_header(batches[count - 1]).base_offset >= end:
        count -= 1
    return batches[:count]


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
