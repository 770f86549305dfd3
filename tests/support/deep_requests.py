"""Requests that come further than the schema of their API alone leads: they name what exists, in
the state in which most is to be done. Each is prepared over a connection of its own.
"""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import PARTITIONS_MAX
from lakehead.broker.network.connection import CONTROL_REQUEST_MAX
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from tests.support.wire import Batch, Wire, frame

Deep = Iterator[tuple[str, bytes]]
FRAME_MAX = 100 << 20
"""`socket.request.max.bytes`."""
TAKEN_MAX = 1_000_000
"""Bytes of a record that is taken, by `max.message.bytes`."""
GROUP_TYPE, TRANSACTION_TYPE = 0, 1
AGAIN_S = 0.05
LEFT = 4096
"""Bytes of a request that are left for all but its field of bytes."""
_AGAIN = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
    }
)
_SECOND = timedelta(seconds=1)


class Asker:
    """Asks a node by the fields of requests, about a topic `name` of so many partitions."""

    def __init__(self, wire: Wire, name: str, partitions: int) -> None:
        self.wire = wire
        self.name = name
        self.partitions = partitions

    def request(self, key: int, version: int, name: str, /, **fields: Any) -> bytes:
        """Return a request, without its length."""
        module = schema(key, version).request_module
        return encode_request(key, version, 7, entity(module, name, **fields))[4:]

    def part(self, key: int, version: int, name: str, /, **fields: Any) -> Any:
        """Return a part of a request."""
        return entity(schema(key, version).request_module, name, **fields)

    def ask(self, key: int, version: int, name: str, /, **fields: Any) -> Any:
        """Return the response, which is asked for again while a coordinator is not ready."""
        known = schema(key, version)
        while True:
            self.wire.send(frame(self.request(key, version, name, **fields)))
            answer = self.wire.receive()
            assert answer is not None, f"{name}: connection closed"
            body = memoryview(answer)
            response = decode(known.response_class, body, 4 + known.flexible_response, 1 << 30)
            if getattr(response, "error_code", None) not in _AGAIN:
                return response
            time.sleep(AGAIN_S)  # a client's back-off

    def find_coordinator(self, key: str, key_type: int) -> None:
        """Have the node make the coordinators' topic, and this key's coordinator be there."""
        self.ask(10, 2, "FindCoordinatorRequest", key=key, key_type=key_type)


def joining(asker: Asker, group: str, metadata: bytes) -> bytes:
    """Return the JoinGroup of a new member."""
    return asker.request(
        *(11, 3, "JoinGroupRequest"),
        group_id=group,
        session_timeout=10 * _SECOND,
        rebalance_timeout=10 * _SECOND,
        member_id="",
        protocol_type="consumer",
        protocols=[asker.part(11, 3, "JoinGroupRequestProtocol", name="range", metadata=metadata)],
    )


def commit_offsets(asker: Asker, group: str) -> None:
    """Commit offsets of all partitions for a group without members."""
    asker.find_coordinator(group, GROUP_TYPE)
    partitions = [
        asker.part(
            *(8, 6, "OffsetCommitRequestPartition"),
            partition_index=index,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for index in range(asker.partitions)
    ]
    topic = asker.part(8, 6, "OffsetCommitRequestTopic", name=asker.name, partitions=partitions)
    answer = asker.ask(
        *(8, 6, "OffsetCommitRequest"),
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic],
    )
    codes = {one.error_code for topic in answer.topics for one in topic.partitions}
    assert codes == {ErrorCode.none}


def join_group(asker: Asker) -> Deep:
    """A member whose metadata is as long as a request may be."""
    yield "deep: protocols.metadata", joining(asker, "long", bytes(CONTROL_REQUEST_MAX - LEFT))


def sync_group(asker: Asker) -> Deep:
    """The leader's assignment, as long as a request may be."""
    asker.find_coordinator("synced", GROUP_TYPE)
    asker.wire.send(frame(joining(asker, "synced", bytes(1000))))
    answer = asker.wire.receive()
    assert answer is not None
    joined = decode(schema(11, 3).response_class, memoryview(answer), 4)
    given = asker.part(
        *(14, 3, "SyncGroupRequestAssignment"),
        member_id=joined.member_id,
        assignment=bytes(CONTROL_REQUEST_MAX - LEFT),
    )
    yield (
        "deep: assignments.assignment",
        asker.request(
            *(14, 3, "SyncGroupRequest"),
            group_id="synced",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=None,
            assignments=[given],
        ),
    )


def _begun(asker: Asker, transactional_id: str) -> dict[str, Any]:
    asker.find_coordinator(transactional_id, TRANSACTION_TYPE)
    fields = {"transactional_id": transactional_id, "transaction_timeout": 60 * _SECOND}
    answer = asker.ask(22, 4, "InitProducerIdRequest", **fields, producer_id=-1, producer_epoch=-1)
    assert answer.error_code is ErrorCode.none
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": answer.producer_id,
        "v3_and_below_producer_epoch": answer.producer_epoch,
    }


def _added(asker: Asker, transactional_id: str) -> tuple[bytes, dict[str, Any]]:
    begun = _begun(asker, transactional_id)
    topic = asker.part(
        *(24, 3, "AddPartitionsToTxnTopic"),
        name=asker.name,
        partitions=list(range(asker.partitions)),
    )
    request = asker.request(
        24, 3, "AddPartitionsToTxnRequest", **begun, v3_and_below_topics=[topic]
    )
    return request, {name.removeprefix("v3_and_below_"): value for name, value in begun.items()}


def add_partitions(asker: Asker) -> Deep:
    """All partitions take part in a transaction."""
    yield "deep: all partitions", _added(asker, "added")[0]


def end_transaction(asker: Asker) -> Deep:
    """A transaction with all partitions ends: each has a marker."""
    request, producer = _added(asker, "ended")
    asker.wire.send(frame(request))
    assert asker.wire.receive() is not None
    yield (
        "deep: all partitions",
        asker.request(26, 3, "EndTxnRequest", **producer, committed=True),
    )


def commit_in_transaction(asker: Asker) -> Deep:
    """Offsets of all partitions in a transaction."""
    begun = _begun(asker, "committed")
    producer = {name.removeprefix("v3_and_below_"): value for name, value in begun.items()}
    asker.ask(25, 3, "AddOffsetsToTxnRequest", **producer, group_id="worst")
    partitions = [
        asker.part(
            *(28, 3, "TxnOffsetCommitRequestPartition"),
            partition_index=index,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="m" * 100,
        )
        for index in range(asker.partitions)
    ]
    topic = asker.part(28, 3, "TxnOffsetCommitRequestTopic", name=asker.name, partitions=partitions)
    yield (
        "deep: all partitions",
        asker.request(
            *(28, 3, "TxnOffsetCommitRequest"),
            **producer,
            group_id="worst",
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic],
        ),
    )


def produce(asker: Asker) -> Deep:
    """A batch to each partition, and one that is as long as a request may be."""
    batch = Batch().encode()
    each = [_records(asker, index, batch) for index in range(asker.partitions)]
    yield "deep: a batch to each partition", _produced(asker, each)
    large = Batch(values=(bytes(TAKEN_MAX),)).encode()
    each = [_records(asker, index, large) for index in range(FRAME_MAX // len(large))]
    yield "deep: large batches to many partitions", _produced(asker, each)
    huge = Batch(values=(bytes(FRAME_MAX - LEFT),)).encode()
    yield "deep: one batch", _produced(asker, [_records(asker, 0, huge)])


def _records(asker: Asker, index: int, records: bytes) -> Any:
    return asker.part(0, 8, "PartitionProduceData", index=index, records=records)


def _produced(asker: Asker, partitions: list[Any]) -> bytes:
    topic = asker.part(0, 8, "TopicProduceData", name=asker.name, partition_data=partitions)
    return asker.request(
        *(0, 8, "ProduceRequest"),
        transactional_id=None,
        acks=-1,
        timeout=10 * _SECOND,
        topic_data=[topic],
    )


def _created(asker: Asker, count: int, partitions: int, prefix: str) -> bytes:
    topics = [
        asker.part(
            *(19, 5, "CreatableTopic"),
            name=f"{prefix}-{number}",
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        for number in range(count)
    ]
    return asker.request(
        19, 5, "CreateTopicsRequest", topics=topics, timeout=_SECOND, validate_only=False
    )


def create_topics(asker: Asker) -> Deep:
    """As many partitions as a request may make: of one topic, and of many."""
    for count in (1, PARTITIONS_MAX):
        yield (
            f"deep: {count} topics of {PARTITIONS_MAX // count} partitions",
            _created(asker, count, PARTITIONS_MAX // count, f"made-{count}"),
        )


def delete_topics(asker: Asker) -> Deep:
    """The largest topic that one request makes."""
    asker.wire.send(frame(_created(asker, 1, PARTITIONS_MAX, "gone")))
    assert asker.wire.receive() is not None
    yield (
        "deep: a topic of 10,000 partitions",
        asker.request(
            *(20, 5, "DeleteTopicsRequest"), topic_names=["gone-0"], timeout=10 * _SECOND
        ),
    )


def create_partitions(asker: Asker) -> Deep:
    """As many partitions as a request may add."""
    topic = asker.part(
        *(37, 3, "CreatePartitionsTopic"),
        name=asker.name,
        count=asker.partitions + PARTITIONS_MAX,
        assignments=None,
    )
    yield (
        "deep: 10,000 more partitions",
        asker.request(
            *(37, 3, "CreatePartitionsRequest"),
            topics=[topic],
            timeout=10 * _SECOND,
            validate_only=False,
        ),
    )


DEEP: dict[int, Callable[[Asker], Deep]] = {
    0: produce,
    11: join_group,
    14: sync_group,
    19: create_topics,
    20: delete_topics,
    24: add_partitions,
    26: end_transaction,
    28: commit_in_transaction,
    37: create_partitions,
}
"""By API key."""
