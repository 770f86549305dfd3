"""A client above its quota is throttled as in Kafka: its response comes at once and says for how
long, its connection is muted for that time, and nobody else notices."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.metadata.records import ClientQuota
from tests.support.node_client import LIMIT_S, Client, close_clients
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.share_member import ShareMember, parts, share
from tests.support.wire import Batch

KIB = 1 << 10
EACH: dict[str, str | None] = {"client-id": None}
_numbers = itertools.count()
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster(1) as started:
        await started.nodes[1].replication_control.create("t", 1)
        await started.until(lambda: started.leaders("t") == [1])
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def node(cluster: NodeCluster) -> AsyncIterator[Node]:
    """The node, without quotas."""
    yield cluster.nodes[1]
    await close_clients()
    node = cluster.nodes[1]
    for owner, values in list(node.state.quotas.items()):
        await set_quota(node, dict(owner), **dict.fromkeys(values, None))
    await cluster.until(lambda: not node.server.connections)
    assert node.server.throttled_now == 0
    assert node.memory.frames.used == 0


async def set_quota(node: Node, owner: dict[str, str | None], **values: float | None) -> None:
    await node.engine.metadata.commit([ClientQuota(entity=owner, values=values)])


async def connect(node: Node, client_id: str = "") -> Client:
    """Connect with a client id, by default one that nothing was measured for."""
    client = await Client.connect(node)
    client.client_id = client_id or fresh()
    return client


async def produce(client: Client, size: int) -> tuple[ErrorCode, float]:
    """Produce a batch of about `size` bytes; return its code and throttle time in seconds."""
    client.produce(Batch(values=(bytes(size),)).encode())
    response = await client.receive()
    code = response.responses[0].partition_responses[0].error_code
    return code, response.throttle_time.total_seconds()


def end_of(node: Node) -> int:
    partition = node.topics.partition("t", 0)
    assert partition is not None
    return partition.high_watermark


def fresh() -> str:
    return f"client-{next(_numbers)}"


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_producer_above_its_quota_gets_its_response_at_once_and_is_muted(
    node: Node,
) -> None:
    await set_quota(node, EACH, producer_byte_rate=10 * KIB)
    await set_quota(node, {"client-id": "other"}, producer_byte_rate=1e9)
    client, other = await connect(node), await connect(node, "other")
    began = now()
    code, throttle_s = await produce(client, 120 * KIB)
    assert code is ErrorCode.none
    # The rate is measured over ten seconds at the start: (12 - 10) / 10 * 10 s.
    assert throttle_s == pytest.approx(2.0, abs=0.15)
    assert now() - began < 1
    assert node.server.throttled_now == 1
    client.produce(Batch().encode())
    code, throttle_s = await produce(other, 500 * KIB)
    assert (code, throttle_s) == (ErrorCode.none, 0.0)
    assert now() - began < 1
    await client.receive()
    assert now() - began >= 1.9
    counts = node.quotas.throttles
    assert counts.requests_total["producer_byte_rate"] >= 1
    assert counts.levels_total["default client-id"] >= 1
    assert counts.seconds_total["producer_byte_rate"] >= 1.9


async def test_requests_that_are_sent_while_muted_wait_and_all_get_their_response(
    node: Node,
) -> None:
    await set_quota(node, EACH, producer_byte_rate=100 * KIB)
    client = await connect(node)
    began = now()
    for _ in range(12):
        client.produce(Batch(values=(bytes(100 * KIB),)).encode())
    throttled = [(await client.receive()).throttle_time.total_seconds() for _ in range(12)]
    # Ten of them are within the quota of the window.
    assert throttled[:9] == [0.0] * 9
    assert throttled[10] > 0.5
    assert now() - began > 0.9
    assert node.server.throttled_now == 1


async def test_without_acknowledgement_a_producer_is_muted_all_the_same(node: Node) -> None:
    await set_quota(node, EACH, producer_byte_rate=10 * KIB)
    client = await connect(node)
    began = now()
    client.produce(Batch(values=(bytes(115 * KIB),)).encode(), acks=0)
    assert (await produce(client, 10))[0] is ErrorCode.none
    assert now() - began > 1.2


async def test_a_throttled_fetch_has_no_records_and_the_session_goes_on(node: Node) -> None:
    writer = await connect(node, "writer")
    await produce(writer, 20 * KIB)
    end = end_of(node)
    offsets = {0: end - 1}
    client = await connect(node)
    client.fetch(offsets, session=(0, 0))
    first = await client.receive()
    assert first.responses
    await set_quota(node, EACH, consumer_byte_rate=1.7 * KIB)
    client.fetch(offsets, session=(first.session_id, 1))
    assert (await client.receive()).throttle_time.total_seconds() > 1  # nothing else was read
    began = now()
    client.fetch(offsets, session=(first.session_id, 2))
    second = await client.receive()
    assert not second.responses
    assert second.session_id == first.session_id
    assert second.throttle_time.total_seconds() > 0
    assert now() - began > 1
    await set_quota(node, EACH, consumer_byte_rate=None)
    unmuted = await connect(node)
    unmuted.fetch(offsets, session=(first.session_id, 3))
    third = await unmuted.receive()
    assert third.throttle_time.total_seconds() == 0
    assert third.responses[0].partitions[0].records


async def test_a_throttled_share_fetch_has_no_records_and_delivers_none(node: Node) -> None:
    writer = await connect(node, "writer")
    first = end_of(node) + 1
    await share(node, group="shared", start=first - 1)
    await produce(writer, 20 * KIB)
    await produce(writer, 20 * KIB)
    member = await ShareMember.connect(node, "a", group="shared")
    member.client.client_id = fresh()
    await set_quota(node, EACH, consumer_byte_rate=1.7 * KIB)
    member.send_fetch([0], max_records=1, wait_ms=60_000)
    response = await member.receive_fetch()
    assert response.throttle_time.total_seconds() > 1
    assert parts(response)[0].acquired_records[0].last_offset == first - 1
    member.send_fetch(max_records=1, wait_ms=5_000)
    response = await member.receive_fetch()
    assert (response.error_code, response.responses) == (ErrorCode.none, ())
    assert response.throttle_time.total_seconds() > 0
    other = await ShareMember.connect(node, "b", group="shared")
    await set_quota(node, EACH, consumer_byte_rate=None)
    assert await other.fetch([0]) == {0: [(first, first, 1)]}, "the same delivery is the first one"


async def test_a_throttled_first_fetch_leaves_no_session(node: Node) -> None:
    writer = await connect(node, "writer")
    await produce(writer, 20 * KIB)
    end = end_of(node)
    await set_quota(node, EACH, consumer_byte_rate=1.9 * KIB)
    client = await connect(node)
    client.fetch({0: end - 1})
    assert (await client.receive()).responses
    sessions = len(node.fetch_sessions)
    client.fetch({0: end - 1}, session=(0, 0))
    throttled = await client.receive()
    assert (throttled.session_id, throttled.responses) == (0, ())
    assert len(node.fetch_sessions) == sessions


async def test_a_batch_beyond_all_that_a_window_allows_is_fetched_in_the_end(node: Node) -> None:
    """Kafka never sends it: the consumer stands still."""
    writer = await connect(node, "writer")
    await produce(writer, 64 * KIB)
    end = end_of(node)
    await set_quota(node, EACH, consumer_byte_rate=1)
    client = await connect(node)
    client.fetch({0: end - 1})
    response = await client.receive()
    assert len(response.responses[0].partitions[0].records or b"") > 64 * KIB
    assert response.throttle_time.total_seconds() > 64_000  # the time that those bytes take


async def test_a_fetch_is_no_larger_than_a_window_allows(node: Node) -> None:
    writer = await connect(node, "writer")
    end = end_of(node)
    for _ in range(8):
        await produce(writer, 10 * KIB)
    await set_quota(node, EACH, consumer_byte_rate=3 * KIB)
    client = await connect(node)
    client.fetch({0: end}, min_bytes=1 << 20)
    response = await client.receive()
    assert response.throttle_time.total_seconds() == 0
    assert 20 * KIB <= len(response.responses[0].partitions[0].records) <= 30 * KIB


def create_topics(version: int, *names: str, partitions: int = 1, check: bool = False) -> Any:
    module = schema(19, version).request_module
    topics = [
        entity(
            module,
            "CreatableTopic",
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=(),
            configs=(),
        )
        for name in names
    ]
    return entity(module, "CreateTopicsRequest", topics=topics, timeout=9000, validate_only=check)


@pytest.mark.parametrize("version", [7, 5])
async def test_controller_mutations_are_refused_where_clients_know_the_error(
    node: Node, version: int
) -> None:
    await set_quota(node, {"client-id": f"admin{version}"}, controller_mutation_rate=0.5)
    client = await connect(node, f"admin{version}")
    dry = await client.ask(19, version, create_topics(version, "dry", partitions=50, check=True))
    assert dry.throttle_time.total_seconds() == 0
    # The bucket has 5.5 tokens at the start; a request may take more than there are.
    names = [f"v{version}-a", f"v{version}-b"]
    response = await client.ask(19, version, create_topics(version, *names, partitions=6))
    codes = {topic.name: topic.error_code for topic in response.topics}
    if version == 7:
        assert codes == {names[0]: ErrorCode.none, names[1]: ErrorCode.throttling_quota_exceeded}
        assert response.throttle_time.total_seconds() == pytest.approx(1.0, abs=0.3)
        assert node.quotas.throttles.requests_total["controller_mutation_rate"] == 1
    else:
        assert set(codes.values()) == {ErrorCode.none}
        assert response.throttle_time.total_seconds() == pytest.approx(13.0, abs=1)
    assert node.server.throttled_now == 1


async def test_partitions_of_topics_count_when_they_are_added_and_deleted(node: Node) -> None:
    await node.replication_control.create("grows", 1)
    await set_quota(node, {"client-id": "ops"}, controller_mutation_rate=0.5)
    client = await connect(node, "ops")

    def grow(count: int) -> Any:
        module = schema(37, 3).request_module
        topic = entity(module, "CreatePartitionsTopic", name="grows", count=count, assignments=None)
        return entity(
            module, "CreatePartitionsRequest", topics=[topic], timeout=9000, validate_only=False
        )

    grown = await client.ask(37, 3, grow(7))
    assert grown.results[0].error_code is ErrorCode.none
    refused = await client.ask(37, 3, grow(8))
    assert refused.results[0].error_code is ErrorCode.throttling_quota_exceeded
    assert refused.throttle_time.total_seconds() > 0
    module = schema(20, 5).request_module
    delete = entity(module, "DeleteTopicsRequest", topic_names=("grows",), timeout=9000)
    deleted = await client.ask(20, 5, delete)  # after the time for the refusal
    assert deleted.responses[0].error_code is ErrorCode.none
    assert (await client.ask(37, 3, grow(8))).throttle_time.total_seconds() == 0


async def test_a_client_that_uses_more_than_its_share_of_the_loop_is_throttled(
    node: Node,
) -> None:
    await set_quota(node, EACH, request_percentage=0.01)
    client = await connect(node)
    request = schema(3, 12).request_class
    every = request(
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    throttled = []
    for _ in range(40):
        response = await client.ask(3, 12, every)
        throttled.append(milliseconds(response.throttle_time))
        if throttled[-1]:
            break
    # One sample at most, as in Kafka.
    assert 0 < throttled[-1] <= 1000
    assert node.quotas.throttles.requests_total["request_percentage"] >= 1
    code, _ = await produce(client, 10)
    assert code is ErrorCode.none


async def test_nodes_have_no_quota(node: Node) -> None:
    await set_quota(node, EACH, producer_byte_rate=1, request_percentage=1e-6)
    client = await connect(node)
    client.proof = NodeProof(secret=node.state.node_secret, to_node=1)
    for _ in range(3):
        assert await produce(client, 10 * KIB) == (ErrorCode.none, 0.0)


async def test_a_removed_quota_ends_no_throttle_time_and_counts_no_more(node: Node) -> None:
    await set_quota(node, EACH, producer_byte_rate=10 * KIB)
    client = await connect(node)
    _, throttle_s = await produce(client, 115 * KIB)
    assert throttle_s > 1
    began = now()
    await set_quota(node, EACH, producer_byte_rate=None)
    assert await produce(client, 500 * KIB) == (ErrorCode.none, 0.0)
    assert now() - began > 1


async def test_a_changed_quota_counts_from_the_next_request(node: Node) -> None:
    await set_quota(node, EACH, producer_byte_rate=100 * KIB)
    client = await connect(node)
    assert (await produce(client, 300 * KIB))[1] == 0
    await set_quota(node, EACH, producer_byte_rate=20 * KIB)
    assert (await produce(client, 1))[1] == pytest.approx(5, abs=0.5)


async def test_the_end_of_a_muted_connection_is_seen_at_once(node: Node) -> None:
    await set_quota(node, EACH, producer_byte_rate=1)
    clients = [await connect(node) for _ in range(10)]
    for client in clients:
        _, throttle_s = await produce(client, 100 * KIB)
        assert throttle_s > 9000
    assert node.server.throttled_now == 10
    await close_clients()
    async with asyncio.timeout(LIMIT_S):
        while node.server.connections:  # noqa: ASYNC110 - the node has no event for it
            await asyncio.sleep(0.01)
    assert node.server.throttled_now == 0


async def test_extreme_quotas_and_names_harm_nothing(node: Node) -> None:
    name = "é" * 16_000
    await set_quota(node, {"client-id": name}, producer_byte_rate=5e-324, request_percentage=1e308)
    await set_quota(node, {"client-id": "huge"}, producer_byte_rate=1.7e308)
    await set_quota(
        node, {"client-id": "tiny"}, consumer_byte_rate=1e-300, controller_mutation_rate=1e-300
    )
    _, throttle_s = await produce(await connect(node, name), 10)
    assert milliseconds_of(throttle_s) == pytest.approx(2**31 - 1, abs=1000)
    assert await produce(await connect(node, "huge"), 100 * KIB) == (ErrorCode.none, 0.0)
    tiny = await connect(node, "tiny")
    tiny.fetch({0: 0}, wait_ms=0)
    assert (await tiny.receive()).throttle_time.total_seconds() >= 0
    other = await connect(node, "tiny")
    response = await other.ask(19, 5, create_topics(5, "tiny-1"))
    assert response.topics[0].error_code is ErrorCode.none
    assert response.throttle_time.total_seconds() > 1e6


def milliseconds_of(seconds: float) -> int:
    return round(seconds * 1000)


async def test_an_address_that_connects_too_often_is_held_and_then_closed(node: Node) -> None:
    await set_quota(node, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    request = schema(18, 0).request_class()
    outcomes = []
    for _ in range(14):
        client = await Client.connect(node)
        client.send(18, 0, request)
        outcomes.append(asyncio.ensure_future(client.reader.read(1)))
    async with asyncio.timeout(LIMIT_S):
        found = await asyncio.gather(*outcomes)
    served = sum(bool(one) for one in found)
    assert 9 <= served <= 12
    assert found[0]
    assert not found[-1]
    assert node.quotas.throttles.requests_total["connection_creation_rate"] >= 2
    await set_quota(node, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    client = await Client.connect(node)
    assert await client.ask(18, 0, request)
