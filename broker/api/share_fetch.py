"""ShareFetch (key 78), versions 1 and 2: records for a member of a share group, and its verdicts on
records that it got before.

2 acquire modes (KIP-1206), renewal of acquisition locks (KIP-1222).

Acknowledgements come first: they are durable before records are acquired. A member acquires what is
available of the partitions in its share session, in turn. Without enough of it the request waits
for the high watermarks of its partitions, for records that others release, or for its deadline.
Cold partitions are read from objects, one at a time, with memory from the same pool as for Fetch
(`RequestMemory`). No await stands between the read of a partition, its acquisition and the
response. Control records, and for groups that read committed records those of aborted transactions,
are not delivered.

A client above its quota gets its response without records, and these are available again: what it
does not get was not delivered. Kafka lets them wait for the end of their locks.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.api.fetch import PARSED_INLINE_MAX
from lakehead.broker.api.share_acknowledgements import (
    RECORDS_MAX,
    Acknowledged,
    acknowledge,
    group_of,
    has_acknowledgements,
    member_of,
    places_of,
)
from lakehead.broker.api.turns import Turns, elements_max
from lakehead.broker.cluster.metadata_image import hint_for
from lakehead.broker.network.connection import Connection, Slot
from lakehead.broker.partition.cold_reads import UploadWaits
from lakehead.broker.partition.partition import Partition
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import (
    KafkaError,
    MalformedFrame,
    error_code,
    error_message,
)
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.protocol.messages import milliseconds
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.broker.protocol.share_fetch import SharePartitionResult, ShareResponseWriter
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP, READ_TOPIC
from lakehead.broker.services import FetchedTo
from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.share_partition import AcquiredRecords, AcquireRequest, OffsetRange
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Place,
    ShareSession,
    ShareSessionKey,
)
from lakehead.storage.errors import StorageError
from lakehead.storage.format.record_batch import BatchHeader, iter_headers

API = Api(
    key=78,
    name="ShareFetch",
    versions=(1, 2),
    records_max=RECORDS_MAX,
    access=(READ_GROUP, READ_TOPIC),
)

_RECORD_LIMIT = 1
"""The acquire mode in which the limit of records is exact (KIP-1206)."""
_WAIT_MAX_MS = 3_600_000
_READ_SIZE = 4 << 20
"""Bytes that are looked at in a partition at once: views of the cache."""
_COLD_SIZE = 1 << 20
"""Bytes of a cold read."""
_UNKNOWN_MAX = 1_000
"""Partitions of a share session that this node does not know: it may be behind in the metadata."""
_COLD_SHARE = 0.5
"""Share of the memory for responses that cold reads may use."""


class _Batch(NamedTuple):
    """A record batch that was read."""

    data: memoryview
    header: BatchHeader


class _Cold(NamedTuple):
    """A partition that has to be read from objects, from an offset."""

    partition: Partition
    offset: int


def start(frame: memoryview, header: RequestHeader, context: RequestContext) -> bool:
    """Start a request; see `FrameHandler`. Raises MalformedFrame."""
    elements = elements_max(context.services, API)
    connection: Connection = context.connection
    slot = connection.slot()
    read = partial(decode, header.schema.request_class, frame, header.body, elements)
    if len(frame) > PARSED_INLINE_MAX:
        work = _serve_long(read, header, context, slot)
    else:
        work = ShareFetchCall(context, header, read(), slot).run()
    slot.cancel = context.services.scope.spawn_apart(
        work, name="ShareFetch", on_error=partial(context.services.crashed, connection)
    ).cancel
    return True


async def _serve_long(
    read: Callable[[], Any], header: RequestHeader, context: RequestContext, slot: Slot
) -> None:
    """Read a long request off the event loop, then serve it."""
    loop = asyncio.get_running_loop()
    try:
        work = read if context.quota is None else context.quota.aside(read)
        request = await loop.run_in_executor(None, work)
    except MalformedFrame as error:
        context.services.rejected(slot.connection, str(error))
        return
    await ShareFetchCall(context, header, request, slot).run()


class ShareFetchCall:
    """One request at work."""

    def __init__(
        self, context: RequestContext, header: RequestHeader, request: Any, slot: Slot
    ) -> None:
        self._context = context
        self._services = context.services
        self._header = header
        self._request = request
        self._slot = slot
        self._max_bytes = min(
            request.max_bytes,
            self._services.settings.fetch_max_bytes,
            self._services.memory.response_size_max(),
        )
        if context.quota is not None:
            self._max_bytes = min(self._max_bytes, context.quota.fetch_bytes_max())
        self._records_left = request.max_records
        self._is_renewal = getattr(request, "is_renew_ack", False)
        self._is_woken = asyncio.Event()
        self._watched: dict[Place, LedSharePartition] = {}
        self._cold: _Cold | None = None
        """The first partition that is not in memory."""
        self._uploads = UploadWaits(self._services.cold_reads, self._is_woken.set)
        self._warmed: tuple[_Cold, Sequence[memoryview]] | None = None
        """The last cold read."""
        self._results: dict[Place, SharePartitionResult] = {}
        self._acquired: list[tuple[LedSharePartition, list[AcquiredRecords]]] = []
        """Everything that the response has."""
        self._endpoints: dict[int, NodeEndpoint] = {}

    async def run(self) -> None:
        """Serve the request."""
        request = self._request
        try:
            self._context.check(READ_GROUP, group_of(request))
            member = member_of(request)
            self._check_renewal()
            session = self._session(member)
        except KafkaError as error:
            self._respond_with(error)
            return
        acknowledged = await acknowledge(self._context, member, request)
        if session is None:
            manager = self._services.share_partitions
            released = manager.release(member)
            manager.sessions.close(member)
            if released:
                await asyncio.wait(released)
        elif session.partitions and not self._is_renewal:
            await self._note_missing(session)
            if self._records_left > 0 and self._max_bytes > 0:
                try:
                    await self._fetch(member, session)
                finally:
                    self._uploads.close()
                    self._unwatch()
        self._respond(member, acknowledged)

    def _check_renewal(self) -> None:
        """Raise INVALID_REQUEST for a request that renews locks and fetches at once."""
        request = self._request
        if not self._is_renewal:
            return
        limits = (request.max_bytes, request.min_bytes, request.max_records)
        if any(limits) or milliseconds(request.max_wait):
            raise KafkaError(
                ErrorCode.invalid_request, "A request that renews locks fetches no records."
            )

    def _session(self, member: ShareSessionKey) -> ShareSession | None:
        """Return the session to fetch for; None for the end of one."""
        request, sessions = self._request, self._services.share_partitions.sessions
        epoch = request.share_session_epoch
        if epoch == FINAL_EPOCH:
            sessions.find(member)
            return None
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements(request.topics):
                raise KafkaError(ErrorCode.invalid_request)
            session = sessions.open(member, self._slot.connection)
        else:
            session = sessions.next(member, epoch)
        forgotten = [
            (bytes(16) if topic.topic_id is None else topic.topic_id.bytes, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
            if epoch != INITIAL_EPOCH  # there is nothing to forget yet
        ]
        named = [place for place, _ in places_of(request.topics)]
        known = len(self._services.state.streams)
        if len(session.partitions) + len(named) > _UNKNOWN_MAX + 2 * known:
            sessions.close(member)
            raise KafkaError(ErrorCode.invalid_request, "Too many partitions in a share session.")
        sessions.update(session, named, forgotten)
        return session

    async def _note_missing(self, session: ShareSession) -> None:
        """Note errors of partitions that are not here: also of those whose turn does not come, and
        of a request for no records.
        """
        turns = Turns()
        for place in list(session.partitions):
            await turns.step()
            topic = self._services.topics.by_id.get(place[0])
            try:
                if topic is None:
                    raise KafkaError(ErrorCode.unknown_topic_id)
                if not self._context.may(READ_TOPIC, topic.name):
                    raise KafkaError(READ_TOPIC.error)
                topic.served(place[1])
            except KafkaError as error:
                self._results[place] = self._failed(place, error)

    # Fetching.

    async def _fetch(self, member: ShareSessionKey, session: ShareSession) -> None:
        """Acquire records, waiting for them until the deadline."""
        loop = asyncio.get_running_loop()
        wait_ms = min(milliseconds(self._request.max_wait), _WAIT_MAX_MS)
        until = loop.time() + wait_ms / 1000
        while True:
            is_cut_off = not await self._is_current()
            self._begin_pass()
            is_late = loop.time() >= until
            is_enough = is_late or self._request.min_bytes <= 1
            if is_enough or await self._available(member, session):
                await self._take(member, session, is_cut_off=is_cut_off)
            if self._is_done(session):
                return
            if self._cold is not None and not (is_late and self._warmed):
                await self._warm(self._cold)
                continue
            if is_late:
                return
            try:
                async with asyncio.timeout_at(until):
                    await self._is_woken.wait()
            except TimeoutError:
                continue

    def _is_done(self, session: ShareSession) -> bool:
        """Return true if there are records, or only errors to wait for. An error of one partition
        waits for records of others, as in Kafka: else a client would fetch without pause.
        """
        results = self._results
        has_records = any(one.records for one in results.values())
        return has_records or len(results) >= len(session.partitions)

    def _begin_pass(self) -> None:
        self._is_woken.clear()
        self._cold = None

    async def _is_current(self) -> bool:
        """Return whether this node was certainly not fenced: it may serve as a leader."""
        session = self._services.session
        return session.is_current() or await session.ensure()

    async def _take(
        self, member: ShareSessionKey, session: ShareSession, *, is_cut_off: bool
    ) -> None:
        """Acquire what is available of each partition, and note the results."""
        turns = Turns()
        size = 0
        for place in session.rotated(left_out=self._results):
            await turns.step()
            try:
                if is_cut_off:
                    raise KafkaError(ErrorCode.not_leader_or_follower)
                result = self._acquire(member, place, self._max_bytes - size, is_first=not size)
            except (KafkaError, StorageError) as error:
                result = self._failed(place, error)
            if result is not None:
                self._results[place] = result
                size += sum(map(len, result.records))
            if self._cold is not None and not size:
                return  # it has its turn before those that are in memory
            if self._records_left <= 0 or size >= self._max_bytes:
                return

    async def _available(self, member: ShareSessionKey, session: ShareSession) -> bool:
        """Return true if as many bytes are available as the request waits for, or an error."""
        turns = Turns()
        size = 0
        for place in list(session.partitions):
            await turns.step()
            try:
                led = self._led(member, place)
                batches = [] if led is None else self._read(led, self._max_bytes)
            except (KafkaError, StorageError):
                return True
            size += sum(len(one.data) for one in batches)
        return bool(size >= min(self._request.min_bytes, self._max_bytes // 2))

    def _led(self, member: ShareSessionKey, place: Place) -> LedSharePartition | None:
        """Return a share-partition, None while it is being loaded. Raises KafkaError."""
        led = self._watched.get(place)
        if led is None or led.is_resigned:
            topic = self._services.topics.by_id.get(place[0])
            if topic is not None and not self._context.may(READ_TOPIC, topic.name):
                raise KafkaError(READ_TOPIC.error)
            led = self._services.share_partitions.get(SharePartitionKey(member.group_id, *place))
            self._watch(place, led)
        led.begin()
        return led if led.is_loaded else None

    def _acquire(
        self, member: ShareSessionKey, place: Place, room: int, *, is_first: bool
    ) -> SharePartitionResult | None:
        """Acquire records of one partition. Raises KafkaError, StorageError."""
        led = self._led(member, place)
        if led is None:
            return None
        while True:
            offset = led.machine.next_fetch_offset()
            batches = self._read(led, room)
            if not batches or (not is_first and len(batches[0].data) > room):
                return None
            request = AcquireRequest(
                member.member_id,
                led.deadline_ms(),
                self._records_left,
                self._request.batch_size,
                is_strict=getattr(self._request, "share_acquire_mode", 0) == _RECORD_LIMIT,
            )
            ranges = [OffsetRange(one.header.base_offset, _last(one.header)) for one in batches]
            gone = list(_gone(led, batches))
            acquired = led.acquire(request, offset, ranges, gone)
            if acquired:
                break
            if led.machine.next_fetch_offset() <= offset:
                return None  # all that was read is another member's
        self._records_left -= sum(last - first + 1 for first, last, _ in acquired)
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        records = [
            one.data
            for one in batches
            if one.header.base_offset <= last and _last(one.header) >= first
        ]
        self._acquired.append((led, acquired))
        return SharePartitionResult(place[1], records=records, acquired=acquired)

    def _read(self, led: LedSharePartition, room: int) -> list[_Batch]:
        """Return batches of what may be acquired; none when they are cold, or there are none."""
        machine, partition = led.machine, led.partition
        offset = machine.next_fetch_offset()
        end = partition.last_stable_offset if led.is_committed else partition.high_watermark
        if offset >= end or not machine.can_acquire:
            return []
        cold = _Cold(partition, offset)
        if self._warmed is not None and self._warmed[0] == cold:
            pieces: Sequence[memoryview] | None = self._warmed[1]
        else:
            pieces = partition.stream.fetch_cached(offset, min(max(room, 1), _READ_SIZE))
        if pieces is None:
            if not self._uploads.is_due(partition.stream, offset):
                self._cold = self._cold or cold
            return []
        new = max(offset, machine.end_offset)
        return list(_batches(pieces, offset, min(end, new + self._records_left)))

    async def _warm(self, cold: _Cold) -> None:
        """Read a partition from objects."""
        size = min(self._max_bytes, _COLD_SIZE)
        async with self._services.memory.responses.borrowed(size, _COLD_SHARE):
            task = self._services.cold_reads.start(cold.partition.stream, cold.offset, size)
            await asyncio.wait([task])
        found = task.result()
        if isinstance(found, StorageError):
            self._warmed = (cold, ())
            self._cold_failed(cold, found)
            return
        self._warmed = (cold, found)

    def _cold_failed(self, cold: _Cold, error: StorageError) -> None:
        """Note the error of a cold read as the result of its partition."""
        for place, led in self._watched.items():
            if led.partition is cold.partition:
                self._results[place] = self._failed(place, error)

    def _failed(self, place: Place, error: Exception) -> SharePartitionResult:
        code = error_code(error)
        leader = (-1, -1)
        if code is ErrorCode.not_leader_or_follower:
            services = self._services
            topic = services.topics.by_id.get(place[0])
            hint = hint_for(
                services.state, topic, place[1], services.node_id, self._context.address_of
            )
            if hint is not None:
                leader, endpoint = hint
                self._endpoints[endpoint.node_id] = endpoint
        return SharePartitionResult(
            place[1], error=int(code), message=error_message(error), leader=leader
        )

    # Waiting.

    def _watch(self, place: Place, led: LedSharePartition) -> None:
        before = self._watched.get(place)
        if before is not None:
            self._leave(before)
        self._watched[place] = led
        led.wait(self._wake)
        led.partition.wait(self._wake)

    def _unwatch(self) -> None:
        for led in self._watched.values():
            self._leave(led)

    def _leave(self, led: LedSharePartition) -> None:
        led.unwait(self._wake)
        led.partition.unwait(self._wake)

    def _wake(self) -> None:
        self._is_woken.set()

    # Responding.

    def _respond(self, member: ShareSessionKey, acknowledged: dict[Place, Acknowledged]) -> None:
        throttle_ms = self._charge(member)
        results = self._results
        for place, outcome in acknowledged.items():
            result = results.get(place, SharePartitionResult(place[1]))
            results[place] = result._replace(
                acknowledge_error=int(outcome.code), acknowledge_message=outcome.message
            )
        topics: dict[bytes, list[SharePartitionResult]] = {}
        for place, result in results.items():
            topics.setdefault(place[0], []).append(result)
        lock_ms = self._services.share_partitions.settings.lock_ms(member.group_id)
        writer = ShareResponseWriter()
        writer.begin(0, None, lock_ms, len(topics), throttle_ms)
        for topic_id, found in topics.items():
            writer.topic(topic_id, found)
        self._services.counts.fetched(len(results))
        endpoints = list(self._endpoints.values())
        self._slot.complete(writer.finish(self._header.correlation_id, endpoints))

    def _charge(self, member: ShareSessionKey) -> int:
        """Count the records of the response, or take them out of it for a client above its quota;
        return its throttle time in ms.
        """
        size = sum(len(data) for one in self._results.values() for data in one.records)
        quota = self._context.quota
        throttle_ms, sends_records = (0, True) if quota is None else quota.fetched(size)
        if not sends_records:
            for led, acquired in self._acquired:
                led.give_back(member.member_id, acquired)
            self._results.clear()
            return throttle_ms
        if self._request.share_session_epoch == INITIAL_EPOCH and not self._is_renewal:
            for place, _ in places_of(self._request.topics):
                self._results.setdefault(place, SharePartitionResult(place[1]))
        for led, acquired in self._acquired:
            place = led.key.topic_id, led.key.partition
            led.partition.count_sent(sum(map(len, self._results[place].records)))
            records = sum(last - first + 1 for first, last, _ in acquired)
            self._services.share_partitions.counts.acquired(records)
        self._services.counts.sent(FetchedTo.UNKNOWN, size)  # requests do not say a rack
        return throttle_ms

    def _respond_with(self, error: KafkaError) -> None:
        writer = ShareResponseWriter()
        writer.begin(int(error.code), error.message, 0, 0)
        self._slot.complete(writer.finish(self._header.correlation_id))


def _batches(pieces: Sequence[memoryview], offset: int, end: int) -> Iterator[_Batch]:
    """Yield the batches that begin below `end`, from the one with `offset`."""
    for piece in pieces:
        for position, header in iter_headers(piece):
            if header.end_offset <= offset:
                continue
            if header.base_offset >= end:
                return
            yield _Batch(piece[position : position + header.size], header)


def _gone(led: LedSharePartition, batches: Sequence[_Batch]) -> Iterator[OffsetRange]:
    """Yield the offsets of batches that are not delivered."""
    aborted = (
        led.partition.aborted_among(batches[0].header.base_offset, batches[-1].header.end_offset)
        if led.is_committed
        else ()
    )
    for _, header in batches:
        if header.is_control or (
            header.is_transactional
            and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
        ):
            yield OffsetRange(header.base_offset, _last(header))


def _last(header: BatchHeader) -> int:
    return header.end_offset - 1
