"""What a broker says to each request of a transaction, right and wrong ones, over the wire.
`BROKER=kafka` runs it on Kafka.
"""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.node_client import Client, close_clients
from tests.support.wire_transactions import WireProducer

NONE = ErrorCode.none
ORDER, STATE = ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_txn_state
EPOCH, MAPPING = ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_under_test(tmp_path_factory.mktemp("requests"), *HASTY) as running:
        yield running


_names = (f"t{number}" for number in itertools.count())


@pytest.fixture
async def producer(server: ServerProcess) -> AsyncIterator[WireProducer]:
    """A new transactional id, and a new topic of two partitions."""
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, 2)])[name].result(20)
    made = WireProducer(await Client.connect_to(server.port), name, name)
    await made.initialize()
    yield made
    await close_clients()


async def test_what_is_not_in_a_transaction_is_refused(producer: WireProducer) -> None:
    abortable = ErrorCode.transaction_abortable
    assert await producer.produce(0, version=10) == (STATE, -1)
    assert await producer.produce(0, version=11) == (abortable, -1)
    assert await producer.produce(0, producer_epoch=1) == (EPOCH, -1)
    assert await producer.produce(0, producer_id=producer.producer_id + 500) == (MAPPING, -1)
    await producer.add(0)
    assert await producer.produce(0, partition=1) == (STATE, -1)
    nameless = WireProducer(producer.client, producer.topic, None)
    nameless.producer_id, nameless.epoch = producer.producer_id, producer.epoch
    refused = ErrorCode.transactional_id_authorization_failed
    assert await nameless.produce(0) == (refused, -1)
    assert await producer.seen() == (0, 0, set())


async def test_sequences_and_readers_in_a_transaction(producer: WireProducer) -> None:
    me = producer.producer_id
    await producer.add(0)
    assert await producer.produce(0, count=2) == (NONE, 0)
    assert await producer.seen() == (2, 0, set())
    assert (await producer.described())[me] == (0, 1, -1, 0)
    assert await producer.produce(0, count=2) == (NONE, 0), "sent again"
    assert await producer.produce(5) == (ORDER, -1)
    assert await producer.produce(2) == (NONE, 2)
    assert await producer.produce(3, attributes=0) == (STATE, -1)
    other = WireProducer(producer.client, producer.topic, f"{producer.topic}-other")
    await other.initialize()
    await other.add(0)
    assert await other.produce(0) == (NONE, 3)
    await other.end(is_commit=True)
    assert await producer.seen() == (5, 0, set()), "the first is open still"
    await producer.end(is_commit=False)
    assert await producer.seen() == (6, 6, {(me, 0)})
    assert await producer.seen(3) == (6, 6, {(me, 0)})
    assert (await producer.described())[me] == (0, 2, 0, -1)
    await producer.add(0)
    assert await producer.produce(3) == (NONE, 6), "sequences go on"


async def test_markers_of_operators(producer: WireProducer) -> None:
    me = producer.producer_id
    await producer.add(0)
    assert await producer.produce(0) == (NONE, 0)
    assert await producer.mark(epoch=-1) is not NONE
    assert await producer.mark(coordinator_epoch=-5) is ErrorCode.transaction_coordinator_fenced
    assert await producer.mark(partition=9) is ErrorCode.unknown_topic_or_partition
    strict = {"version": 2, "transaction_version": 2}
    assert await producer.mark(**strict) is EPOCH
    assert await producer.seen() == (1, 0, set())
    assert await producer.mark() is NONE
    assert await producer.seen() == (2, 2, {(me, 0)})
    assert await producer.mark(**strict) is NONE, "sent again: its answer may have been lost"
    unknown = {"producer_id": me + 700, "epoch": 3}
    assert await producer.mark(**unknown, coordinator_epoch=0) is NONE
    refused = ErrorCode.cluster_authorization_failed
    assert await producer.mark(**unknown, coordinator_epoch=7) is refused, "it fences coordinators"
    assert (await producer.described())[me + 700] == (3, -1, 0, -1)


async def test_a_successor_fences(producer: WireProducer) -> None:
    await producer.add(0)
    assert await producer.produce(0) == (NONE, 0)
    successor = WireProducer(producer.client, producer.topic, producer.transactional_id)
    await successor.initialize()
    assert successor.epoch > producer.epoch
    assert await producer.produce(1) == (EPOCH, -1)
    assert await producer.seen() == (2, 2, {(producer.producer_id, 0)})


async def test_transactions_of_version_2(producer: WireProducer) -> None:
    new = {"version": 12}
    me = producer.producer_id
    assert await producer.produce(0, **new) == (NONE, 0)
    assert await producer.produce(5, partition=1, **new) == (ORDER, -1)
    await producer.end(is_commit=True, version=5)
    assert producer.epoch == 1
    assert (await producer.described())[me] == (1, -1, 0, -1)
    assert await producer.seen() == (2, 2, set())
    assert await producer.produce(1, producer_epoch=0, **new) == (EPOCH, -1), "it was held up"
    assert await producer.produce(1, **new) == (ORDER, -1)
    assert await producer.produce(0, **new) == (NONE, 2)
    await producer.end(is_commit=False, version=5)
    assert await producer.seen(2) == (4, 4, {(me, 2)})
    assert (await producer.described())[me] == (2, -1, 0, -1)
