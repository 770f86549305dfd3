"""Produce (key 0), versions 3 to 13; advertised from 0 since older clients look for it
(KAFKA-18659).

3 magic 2 · 5 log start offset · 7 zstd · 8 record errors and messages · 9 compact · 10 current
leader · 13 topic ids.

A request is handled in the data callback: each batch is checked, given its offsets, patched in
place and appended to the WAL. The answer leaves when the last of them is durable. A full WAL holds
the request where it is, and the connection with it: nothing is dropped. Left out: transactions
(refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the code that every client takes as final),
LogAppendTime.
"""

import asyncio

from kio.schema.errors import ErrorCode

from broker.network.connection import Connection, Slot
from broker.partition.partition import Partition
from broker.partition.topic import Topic
from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import KafkaError, error_code
from broker.protocol.frame import RequestHeader
from broker.protocol.produce import (
    PartitionData,
    PartitionResult,
    TopicKey,
    TopicResult,
    encode,
    parse,
)
from storage.errors import StorageError, WalFull

API = Api(key=0, name="Produce", versions=(3, 13), advertised_from=0)

RETRY_S = 0.05
"""A request that found the WAL full is tried again after this, if nothing wakes it before."""

_NONE = int(ErrorCode.none)


def start(frame: memoryview, header: RequestHeader, context: RequestContext) -> bool:
    """Start a request; see `FrameHandler`. Raises MalformedFrame."""
    request = parse(frame, header.body, header.version)
    call = ProduceCall(context, header, request.acks)
    if request.acks not in {-1, 0, 1}:
        call.refuse(KafkaError(ErrorCode.invalid_required_acks))
    elif request.transactional_id is not None:
        call.refuse(
            KafkaError(
                ErrorCode.transactional_id_authorization_failed, "transactions are not served yet"
            )
        )
    for topic_data in request.topics:
        call.add_topic(topic_data.key, topic_data.partitions)
    return call.run()


class ProduceCall:
    """One request at work. It holds its place (`_next`) while the WAL is full."""

    __slots__ = (
        "_connection",
        "_context",
        "_header",
        "_latest_ms",
        "_next",
        "_refusal",
        "_results",
        "_slot",
        "_waiting",
        "_wakeup",
        "_work",
    )

    def __init__(self, context: RequestContext, header: RequestHeader, acks: int) -> None:
        node = context.node
        self._context = context
        self._header = header
        self._connection: Connection = context.connection
        self._slot: Slot | None = self._connection.slot() if acks != 0 else None
        self._latest_ms = node.clock.now_ms() + node.settings.log_message_timestamp_after_max_ms
        self._results: list[TopicResult] = []
        self._work: list[tuple[Topic | None, PartitionData, list[PartitionResult]]] = []
        self._next = 0
        self._waiting = 1
        self._wakeup: asyncio.TimerHandle | None = None
        self._refusal: KafkaError | None = None

    def refuse(self, error: KafkaError) -> None:
        """Answer every partition with one error."""
        self._refusal = error

    def add_topic(self, key: TopicKey, partitions: list[PartitionData]) -> None:
        """Add the partitions of one topic to the work."""
        results: list[PartitionResult] = []
        self._results.append(TopicResult(key, results))
        topic = self._context.node.topics.find(key)
        self._work.extend([(topic, data, results) for data in partitions])

    def run(self) -> bool:
        """Append what can be appended; False when the WAL is full and the rest waits."""
        work = self._work
        node = self._context.node
        if not node.is_writable():
            return self._hold()
        while self._next < len(work):
            topic, data, results = work[self._next]
            try:
                results.append(self._append(topic, data))
            except WalFull:
                return self._hold()
            except (KafkaError, StorageError) as error:
                results.append(self._refused(data, error))
            self._next += 1
        self.done(None)
        return True

    def done(self, error: Exception | None) -> None:
        """Count one batch as durable; answer after the last. An error: nobody can know."""
        if error is not None:
            self._connection.abort()
            return
        self._waiting -= 1
        if self._waiting == 0:
            self._answer()

    def _append(self, topic: Topic | None, data: PartitionData) -> PartitionResult:
        partition = self._partition(topic, data.partition)
        plan = partition.plan(data.records, version=self._header.version, latest_ms=self._latest_ms)
        if plan.known_offset >= 0:
            self._waiting += 1
            partition.when_confirmed(plan.known_end, self.done)
            base_offset = plan.known_offset
        else:
            base_offset = partition.perform(plan, self.done)
            self._waiting += 1
        return PartitionResult(data.partition, _NONE, base_offset, partition.log_start_offset)

    def _partition(self, topic: Topic | None, index: int) -> Partition:
        if self._refusal is not None:
            raise self._refusal
        if topic is None:
            by_id = self._header.version >= 13
            raise KafkaError(
                ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
            )
        if topic.is_internal:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic.name} is internal")
        return topic.served(index)

    @staticmethod
    def _refused(data: PartitionData, error: Exception) -> PartitionResult:
        code = error_code(error)
        if code is ErrorCode.unknown_server_error:
            code = ErrorCode.not_leader_or_follower  # a client may duplicate on the other one
        message = error.message if isinstance(error, KafkaError) else str(error)
        return PartitionResult(data.partition, int(code), -1, -1, message)

    def _hold(self) -> bool:
        node = self._context.node
        node.when_writable(self._resume)
        self._wakeup = asyncio.get_running_loop().call_later(RETRY_S, self._resume)
        return False

    def _resume(self) -> None:
        if self._wakeup is None:
            return  # resumed already
        self._wakeup.cancel()
        self._wakeup = None
        if not self._connection.is_open:
            return  # whoever asked is gone, and nothing of the rest was promised
        if self.run():
            self._connection.proceed()

    def _answer(self) -> None:
        node = self._context.node
        node.produced(len(self._work))
        if self._slot is not None:
            self._slot.complete(
                [encode(self._results, self._header.version, self._header.correlation_id)]
            )
        elif any(result.error for topic in self._results for result in topic.partitions):
            self._connection.close()  # acks=0: closing is the only way to say so, as in Kafka
