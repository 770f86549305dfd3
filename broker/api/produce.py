"""Produce (key 0), versions 3 to 13; advertised from 0 since older clients look for it
(KAFKA-18659).

3 magic 2, transactions (KIP-98) · 5 log start offset · 7 zstd · 8 record errors and messages · 9
compact · 10 current leader and its endpoint (KIP-951) · 11 TRANSACTION_ABORTABLE · 12 partitions
join their transaction by it (KIP-890) · 13 topic ids.

A request is handled in the data callback. Of several errors the response has the first in Kafka's
order: a missing transactional id; then for each partition its existence, the form of its records,
the response of the transaction's coordinator (which verifies every batch of good form), acks, and
the batch itself. Each batch is checked, given its offsets, patched in place and appended to the
WAL. The response leaves when the last of them is durable. A full WAL holds the request, and its
connection with it: nothing is dropped. The request also waits, for a moment, for a partition that
is about to be led here (`lakehead.broker.cluster.replica_manager`), for the verification of its
transaction (`lakehead.broker.api.transaction_verification`), for batches that are compressed again
(`lakehead.broker.partition.validation`), and for checks of many records
(`lakehead.broker.partition.record_checks`).
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext

import msgspec
from kio.schema.errors import ErrorCode

from lakehead.broker.api.transaction_verification import TransactionVerification
from lakehead.broker.api.turns import STEPS_AT_ONCE, elements_max
from lakehead.broker.cluster.metadata_image import hint_for
from lakehead.broker.network.connection import Slot
from lakehead.broker.partition.partition import Partition, Topic
from lakehead.broker.partition.record_checks import (
    RECORDS_INLINE_MAX,
    RecordsRefused,
    check_records,
    check_records_aside,
    walked_inline,
)
from lakehead.broker.partition.validation import (
    change_codec,
    check_contents,
    check_form,
    is_marked_transactional,
)
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.broker.protocol.produce import (
    PartitionData,
    PartitionResult,
    ProduceRequest,
    TopicData,
    TopicKey,
    TopicResult,
    encode,
    parse,
    parse_short,
)
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from lakehead.storage.errors import StorageError, WalFull
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    stamp,
)

API = Api(
    key=0,
    name="Produce",
    versions=(3, 13),
    advertised_from=0,
    is_at_once=True,
    access=(WRITE_TRANSACTIONAL_ID, WRITE_TOPIC),
)

RETRY_S = 0.05
"""A request that waits is tried again after this, if nothing wakes it before."""

_NONE = int(ErrorCode.none)
_WITHOUT_START = frozenset(
    {
        *(ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id),
        ErrorCode.topic_authorization_failed,
        *(ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error),
        *(ErrorCode.message_too_large, ErrorCode.corrupt_message),
    }
)
"""Codes for which Kafka leaves out the log start offset."""
_NOTHING = memoryview(b"")
_UNLIMITED = nullcontext()


def start(frame: memoryview, header: RequestHeader, context: RequestContext) -> bool:
    """Start a request; see `FrameHandler`. Raises MalformedFrame."""
    request = parse_short(frame, header.body, header.version)
    if request is None:
        request = parse(frame, header.body, header.version, elements_max(context.services, API))
    call = ProduceCall(context, header, request, len(frame))
    if context.quota is not None:
        context.quota.produced(len(frame))
    if request.acks not in {-1, 0, 1}:
        call.refuse(KafkaError(ErrorCode.invalid_required_acks))
    return call.run()


_STEP_SIZE = 16 << 10
"""Bytes of records that are as much work as one element."""


class Work(msgspec.Struct, frozen=True):
    """The batch of one partition, with its bytes checked. A batch without a header or a partition
    is refused before the request to the coordinator of its transaction.
    """

    number: int
    partition: Partition | None
    records: memoryview
    header: BatchHeader | None
    error: Exception | None
    results: list[PartitionResult]


class ProduceCall(Slot):
    """One request at work, and the place of its response. It waits while a partition is on its way
    here, before any of it is looked at, and (`_next`) while the WAL is full.
    """

    __slots__ = (
        "_awaited",
        "_checks",
        "_context",
        "_frame_size",
        "_good_size",
        "_has_moved",
        "_header",
        "_is_transactional",
        "_next",
        "_now_ms",
        "_prepares",
        "_refusal",
        "_responds",
        "_results",
        "_topics",
        "_transactional_id",
        "_verification",
        "_waiting",
        "_wakeup",
        "_walked",
        "_work",
    )

    def __init__(
        self,
        context: RequestContext,
        header: RequestHeader,
        request: ProduceRequest,
        frame_size: int,
    ) -> None:
        self.connection = context.connection
        self.pieces = self.cancel = self.timing = None
        self._context = context
        self._header = header
        self._responds = request.acks != 0
        if self._responds:
            self.connection.hold(self)
        self._now_ms = context.services.clock.now_ms()
        self._topics = request.topics
        self._transactional_id = request.transactional_id
        self._is_transactional = False
        self._verification: TransactionVerification | None = None
        self._results: list[TopicResult] = []
        self._work: list[Work] = []
        self._checks: Iterator[bool] | None = None
        self._awaited = -1
        self._prepares = False
        self._walked = 0
        self._frame_size = frame_size
        self._good_size = 0
        self._has_moved = False
        self._next = 0
        self._waiting = 1
        self._wakeup: asyncio.TimerHandle | None = None
        self._refusal: KafkaError | None = None

    def refuse(self, error: KafkaError) -> None:
        """Append nothing, and say why."""
        self._refusal = error

    def _check(self) -> bool:
        """Make work of the requested partitions, as much as one turn has time for; return whether
        that is all.
        """
        if self._checks is None:
            topics, self._topics = self._topics, []
            self._checks = self._check_each(topics)
        return next(self._checks, True)

    def _check_each(self, topics: Sequence[TopicData]) -> Iterator[bool]:
        """Check one batch after the other; yield false whenever that was enough for one turn."""
        left = STEPS_AT_ONCE
        for requested in topics:
            if left <= 0:
                yield False
                left = STEPS_AT_ONCE
            results: list[PartitionResult] = []
            key = requested.key
            self._results.append(TopicResult(key, results))
            topic = self._context.services.topics.find(key)
            refusal = self._refusal_of(topic, key)
            left -= 1
            for data in requested.partitions:
                if left <= 0:
                    yield False
                    left = STEPS_AT_ONCE
                work = self._checked(topic, refusal, data, results)
                self._work.append(work)
                left -= 1 + len(work.records) // _STEP_SIZE

    def _refusal_of(self, topic: Topic | None, key: TopicKey) -> KafkaError | None:
        """Return the error of all partitions of a requested topic, if they have one."""
        name = key if topic is None else topic.name
        if not isinstance(name, bytes) and not self._context.may(WRITE_TOPIC, name):
            return KafkaError(WRITE_TOPIC.error)
        if topic is None:
            by_id = self._header.version >= 13
            return KafkaError(
                ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
            )
        if topic.is_internal:
            return KafkaError(ErrorCode.invalid_topic_exception, f"{topic.name} is internal")
        return None

    def _checked(
        self,
        topic: Topic | None,
        refusal: KafkaError | None,
        data: PartitionData,
        results: list[PartitionResult],
    ) -> Work:
        index = data.partition
        records = _NOTHING if data.records is None else data.records
        try:
            if topic is None or refusal is not None:
                assert refusal is not None
                raise refusal
            partition = topic.served(index)
            header = check_form(records, self._header.version)
        except KafkaError as error:
            self._is_transactional |= is_marked_transactional(records)
            return Work(index, None, records, None, error, results)
        if header.attributes & TRANSACTIONAL:
            self._is_transactional = True
        rules = partition.topic.rules
        try:
            check_contents(records, header, rules, self._now_ms)
            if rules.reads_records:
                self._check_records(records, header, partition)
        except KafkaError as error:
            return Work(index, partition, records, header, error, results)
        if rules.codec is not None and rules.changes(header.codec):
            self._prepares = True
        self._good_size += len(records)
        return Work(index, partition, records, header, None, results)

    def _check_records(
        self, records: memoryview, header: BatchHeader, partition: Partition
    ) -> None:
        """Look into a few records now, into more of them later. Raises KafkaError."""
        topic = partition.topic
        count = walked_inline(header, topic.rules)
        if self._walked + count > RECORDS_INLINE_MAX:
            self._prepares = True
            return
        self._walked += count
        check_records(records[HEADER_SIZE:], header, topic, partition.index, self._now_ms)

    def run(self) -> bool:
        """Append batches; return False if the rest waits: the WAL is full, a partition is about to
        arrive, or the coordinator of the transaction has not responded.
        """
        services = self._context.services
        if not services.is_writable():
            return self._hold_until_writable()
        if self._topics and self._awaits():
            return self._hold()
        if not self._check():
            return self._rest_later()
        if self._is_transactional and self._verification is None and self._needs_verification():
            return False
        if self._prepares:
            self._prepares = False
            services.scope.spawn_apart(
                self._prepare(), name="prepare batches", on_error=self._crash
            )
            return False
        left = STEPS_AT_ONCE
        for item in self._work[self._next :]:
            if left <= 0:
                return self._rest_later()
            left -= 1 + len(item.records) // _STEP_SIZE
            try:
                item.results.append(self._result(item))
            except WalFull:
                return self._hold_until_writable()
            self._next += 1
        if self.timing is not None:
            self.timing.note("appended")
        self.done(None)
        return True

    def _rest_later(self) -> bool:
        """Go on in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._go_on)
        return False

    def done(self, error: Exception | None) -> None:
        """Count one batch as durable; respond after the last. After an error the outcome is
        unknown.
        """
        if error is not None:
            self.connection.abort()
            return
        self._waiting -= 1
        if self._waiting == 0:
            if self.timing is not None:
                self.timing.note("durable")
            quota = self._context.quota
            try:
                if quota is None:
                    self._respond()
                else:
                    with quota:
                        self._respond()
            except Exception as crash:  # noqa: BLE001  # the write-ahead log calls this
                self._crash(crash)

    def _needs_verification(self) -> bool:
        """Return true if the coordinator of the transaction has to verify partitions first."""
        self._verification = TransactionVerification(
            self._context.services, self._transactional_id, self._header.version
        )
        name = self._transactional_id
        if name is not None and not self._context.may(WRITE_TRANSACTIONAL_ID, name):
            self._verification.refusal = KafkaError(WRITE_TRANSACTIONAL_ID.error)
            return False
        known = [(work.partition, work.header) for work in self._work]
        batches = [(one, header) for one, header in known if one is not None and header is not None]
        return self._verification.start(batches, self._go_on, self._crash)

    async def _prepare(self) -> None:
        """Look into records and compress again, as the topics of the batches want it; go on."""
        for position, work in enumerate(self._work):
            if work.partition is None or work.header is None or work.error is not None:
                continue
            try:
                self._work[position] = await self._prepared(work, work.partition, work.header)
            except KafkaError as error:
                self._work[position] = msgspec.structs.replace(work, error=error)
        self._go_on()

    async def _prepared(self, work: Work, partition: Partition, header: BatchHeader) -> Work:
        """Return a batch as its topic wants it. Raises KafkaError."""
        memory, topic = self._context.services.memory.inflated, partition.topic
        if topic.rules.reads_records:
            await check_records_aside(work.records, topic, partition.index, self._now_ms, memory)
        if not topic.rules.changes(header.codec):
            return work
        records = await change_codec(work.records, topic.rules, memory)
        return msgspec.structs.replace(work, records=records, header=read_header(records))

    def _result(self, work: Work) -> PartitionResult:
        """Append a batch, or say why not. Raises WalFull."""
        partition, header = work.partition, work.header
        verification = self._verification
        start_offset = -1
        try:
            if verification is not None and verification.refusal is not None:
                raise verification.refusal
            if partition is None or header is None:
                assert work.error is not None
                raise work.error
            if verification is not None:
                verification.check_codes(partition)
            if self._refusal is not None:
                raise self._refusal
            start_offset = partition.stream.start_offset
            base_offset, append_time = self._append(work, partition, header)
        except WalFull:
            raise
        except (KafkaError, StorageError) as refusal:
            return self._refused(work.number, refusal, start_offset)
        return PartitionResult(
            work.number, _NONE, base_offset, start_offset, append_time=append_time
        )

    def _append(self, work: Work, partition: Partition, header: BatchHeader) -> tuple[int, int]:
        """Append a batch; return its first offset, and the time of its appending if its records get
        that. Raises KafkaError, StorageError.
        """
        if work.error is not None:
            raise work.error
        if self._verification is not None:
            self._verification.check_verified(partition, header)
        records = work.records
        plan = partition.plan(records, header)
        append_time = NO_TIMESTAMP
        self._waiting += 1
        try:
            if plan.known_offset >= 0:
                base_offset = plan.known_offset
                partition.when_confirmed(plan.known_end, self.done)
            else:
                if self._good_size < self._frame_size // 2:
                    # A batch that is kept keeps its frame: a small batch must not hold a large one.
                    plan = msgspec.structs.replace(plan, records=memoryview(bytearray(records)))
                topic = partition.topic
                if topic.rules.is_log_append_time:
                    append_time = topic.append_time(self._context.services.clock.now_ms())
                    plan = msgspec.structs.replace(plan, header=stamp(plan.records, append_time))
                base_offset = partition.perform(plan, self.done)
        except StorageError:
            self._waiting -= 1
            raise
        return base_offset, append_time

    def _refused(self, index: int, error: Exception, start_offset: int) -> PartitionResult:
        code = error_code(error)
        if code is ErrorCode.unknown_server_error:
            code = ErrorCode.not_leader_or_follower  # a client may duplicate on the other one
        if code is ErrorCode.not_leader_or_follower:
            self._has_moved = True
        message = error.message if isinstance(error, KafkaError) else str(error)
        records = error.record_errors if isinstance(error, RecordsRefused) else ()
        start_offset = -1 if code in _WITHOUT_START else start_offset
        return PartitionResult(index, int(code), -1, start_offset, message, record_errors=records)

    def _awaits(self) -> bool:
        """Return true if the request waits for a partition, which resumes it when it arrives."""
        services = self._context.services
        for requested in self._topics:
            topic = services.topics.find(requested.key)
            if topic is None:
                continue
            led, delayed = topic.partitions, services.replica_manager.delayed
            for data in requested.partitions:
                index = data.partition
                is_elsewhere = 0 <= index < len(led) and led[index] is None
                if is_elsewhere and delayed.should_wait(topic, index):
                    if not self._context.may(WRITE_TOPIC, topic.name):
                        break  # the time of the response does not show that it exists
                    self._awaited = topic.stream_ids[index]
                    delayed.add(self._awaited, self._resume)
                    return True
        return False

    def _hold_until_writable(self) -> bool:
        self._context.services.when_writable(self._resume)
        return self._hold()

    def _hold(self) -> bool:
        self._wakeup = asyncio.get_running_loop().call_later(RETRY_S, self._resume)
        return False

    def _resume(self) -> None:
        if self._wakeup is None:
            return  # resumed already
        self._wakeup.cancel()
        self._wakeup = None
        if self._awaited >= 0:
            self._context.services.replica_manager.delayed.remove(self._awaited, self._resume)
            self._awaited = -1
        self._go_on()

    def _go_on(self) -> None:
        # The client may be gone: nothing of the rest was promised.
        try:
            with self._context.quota or _UNLIMITED:
                if self.connection.is_open and self.run():
                    self.connection.proceed()
        except Exception as error:  # noqa: BLE001  # the loop calls this
            self._crash(error)

    def _crash(self, error: Exception) -> None:
        self._context.services.crashed(self.connection, error)

    def _respond(self) -> None:
        services = self._context.services
        services.counts.produced(len(self._work))
        if self._responds:
            endpoints = self._name_leaders() if self._has_moved else ()
            header, quota = self._header, self._context.quota
            throttle_ms = 0 if quota is None else quota.finish()
            frame = encode(
                self._results, header.version, header.correlation_id, endpoints, throttle_ms
            )
            self.complete((frame,))
        elif any(result.error for topic in self._results for result in topic.partitions):
            self.connection.close()  # acks=0: closing is the only way to say so, as in Kafka

    def _name_leaders(self) -> Collection[NodeEndpoint]:
        """Put the leaders of partitions that this node does not lead into the results; return their
        endpoints.
        """
        services = self._context.services
        endpoints: dict[int, NodeEndpoint] = {}
        for topic_result in self._results:
            topic = services.topics.find(topic_result.key)
            results = topic_result.partitions
            for position, result in enumerate(results):
                if result.error != ErrorCode.not_leader_or_follower:
                    continue
                hint = hint_for(
                    services.state,
                    topic,
                    result.partition,
                    services.node_id,
                    self._context.address_of,
                )
                if hint is not None:
                    leader, endpoint = hint
                    endpoints[endpoint.node_id] = endpoint
                    results[position] = msgspec.structs.replace(result, leader=leader)
        return endpoints.values()
