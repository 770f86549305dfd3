"""ListOffsets (key 2), versions 1 to 11.

2 isolation level · 4 leader epochs · 6 compact · 7 max timestamp (-3) · 8 earliest local (-4) · 9
latest tiered (-5) · 10 timeout · 11 earliest pending upload (-6).

Everything readable is "local" here, and nothing is tiered in Kafka's sense: -4 is the start, -5 and
-6 find nothing. For readers of committed records the end is the last stable offset. A node that
cannot be sure that it still leads reads the metadata first, and again before the next partition if
that of one took long.

A search by time needs all records of a partition. If some lie in the log of a node that died, a
request waits for their upload as long as its timeout allows, and `_UPLOAD_WAIT_S` at most, since
the client's next requests wait too. Then the partition gets OFFSET_NOT_AVAILABLE, and the client
sends the request again. Kafka's leader sends this error if it was elected just now and still lacks
records (KIP-207), and LEADER_NOT_AVAILABLE before version 5.
"""

import asyncio
from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.partition.partition import Partition
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TOPIC
from lakehead.broker.services import ReadSession
from lakehead.storage.errors import LakeheadError

API = Api(key=2, name="ListOffsets", versions=(1, 11), access=(DESCRIBE_TOPIC,))

SPECIAL = range(-1, -7, -1)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = SPECIAL
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
"""First version that has each of the special timestamps."""

NOTHING = (-1, -1)
READ_UNCOMMITTED = 0
_UPLOAD_WAIT_S = 5.0
"""Seconds that the searches of a request wait for uploads, all together."""
_KNOWS_NOT_AVAILABLE = 5


async def handle(request: Any, context: RequestContext) -> Any:
    """Return an offset for each requested partition."""
    module = context.response
    is_leader = True
    is_committed = getattr(request, "isolation_level", READ_UNCOMMITTED) != READ_UNCOMMITTED
    turns = Turns()
    deadline = _upload_deadline(request)
    named: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        await turns.step()
        for requested in topic.partitions:
            await turns.step()
            named[topic.name, requested.partition_index] += 1

    async def one_result(name: str, requested: Any, *, is_allowed: bool) -> Any:
        nonlocal is_leader
        await turns.step()
        if not is_allowed:
            return _result(requested, context, error=DESCRIBE_TOPIC.error)
        if named[name, requested.partition_index] > 1:
            return _result(requested, context, error=ErrorCode.invalid_request)
        # The search for the partition before may have taken longer than the session.
        is_leader = is_leader and await context.services.session.ensure()
        return await _offset_found(
            name,
            requested,
            context,
            deadline,
            is_leader=is_leader,
            is_committed=is_committed,
        )

    topics = []
    for topic in request.topics:
        await turns.step()
        is_allowed = context.may(DESCRIBE_TOPIC, topic.name)
        partitions = [
            await one_result(topic.name, requested, is_allowed=is_allowed)
            for requested in topic.partitions
        ]
        topics.append(
            entity(module, "ListOffsetsTopicResponse", name=topic.name, partitions=partitions)
        )
    return entity(module, "ListOffsetsResponse", topics=topics)


def _upload_deadline(request: Any) -> float:
    """Return until when searches wait for uploads, by the time of the event loop."""
    wait_s = _UPLOAD_WAIT_S
    timeout = getattr(request, "timeout", None)
    if timeout is not None and timeout.total_seconds() > 0:
        wait_s = min(wait_s, timeout.total_seconds())
    return asyncio.get_running_loop().time() + wait_s


async def _offset_found(
    name: str,
    requested: Any,
    context: RequestContext,
    deadline: float,
    *,
    is_leader: bool,
    is_committed: bool,
) -> Any:
    try:
        _check_time(requested.timestamp, context.version)
        if not is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        topic = context.services.topics.by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = topic.served(requested.partition_index)
        partition.check_epoch(getattr(requested, "current_leader_epoch", -1))
        if requested.timestamp >= 0 or requested.timestamp == MAX_TIMESTAMP:
            await _wait_uploaded(partition, deadline, context.version)
        session = context.services.session
        offset, timestamp = await _find(
            partition, requested.timestamp, session, is_committed=is_committed
        )
        epoch = partition.epoch_at(offset) if offset >= 0 else -1
    except LakeheadError as caught:
        return _result(requested, context, error=error_code(caught))
    return _result(requested, context, offset, timestamp, epoch)


def _result(
    requested: Any,
    context: RequestContext,
    offset: int = -1,
    timestamp: int = -1,
    epoch: int = -1,
    *,
    error: ErrorCode = ErrorCode.none,
) -> Any:
    return entity(
        context.response,
        "ListOffsetsPartitionResponse",
        partition_index=requested.partition_index,
        error_code=error,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _check_time(timestamp: int, version: int) -> None:
    """Raise UNSUPPORTED_VERSION for a special timestamp that the version does not know."""
    if timestamp < 0 and (timestamp not in SPECIAL or version < SINCE.get(timestamp, 1)):
        raise KafkaError(ErrorCode.unsupported_version)


async def _wait_uploaded(partition: Partition, deadline: float, version: int) -> None:
    """Wait until all records of a partition are in objects, or in the log of its leader. Raises
    OFFSET_NOT_AVAILABLE at the deadline.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await partition.stream.wait_all_uploaded()
    except TimeoutError:
        is_known = version >= _KNOWS_NOT_AVAILABLE
        error = ErrorCode.offset_not_available if is_known else ErrorCode.leader_not_available
        raise KafkaError(error) from None


async def _find(
    partition: Partition, timestamp: int, session: ReadSession, *, is_committed: bool
) -> tuple[int, int]:
    """Return (offset, timestamp); the timestamp only where a record was looked for."""
    if timestamp == LATEST:
        end = partition.last_stable_offset if is_committed else partition.high_watermark
        return end, -1
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return partition.log_start_offset, -1
    if timestamp in {LATEST_TIERED, EARLIEST_PENDING}:
        return NOTHING
    stream = partition.stream
    if timestamp == MAX_TIMESTAMP:
        found = await stream.offset_of_max_timestamp()
    else:
        found = await stream.offset_for_timestamp(timestamp)
    if not await session.ensure():  # the search may have taken longer than the session
        raise KafkaError(ErrorCode.not_leader_or_follower)
    if found is None or (is_committed and found.offset >= partition.last_stable_offset):
        return NOTHING
    return found.offset, found.timestamp
