"""A node whose memory for requests is used up, in this process: who waits, who goes on, and that
all is given back.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from lakehead.broker.network.memory_shares import Holding, MemoryShares
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.network.server import DEAF_S
from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.varint import encode_uvarint
from tests.integration.test_node_protocol import GatedStore, batch, running, until, with_topic
from tests.support.node_client import LIMIT_S, Client
from tests.support.wire import frame

MIB = 1 << 20
SIZE = 8 * MIB
LARGE = b"x" * 200_000
PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12


@asynccontextmanager
async def small_node(store: GatedStore | None = None) -> AsyncIterator[Node]:
    """A node with little memory, which must all be free at the end."""
    async with running(store, request_memory_size=SIZE) as node:
        yield node
        for connection in list(node.server.connections):
            connection.abort()
        await until(lambda: not node.server.connections)
        memory = node.memory
        await until(lambda: not memory.frames.used + memory.responses.used + memory.inflated.used)
        assert memory.frames.waiting == memory.responses.waiting == 0


def metadata() -> object:
    module = schema(METADATA, 5).request_module
    return entity(module, "MetadataRequest", topics=None, allow_auto_topic_creation=False)


def heartbeat() -> object:
    module = schema(HEARTBEAT, 3).request_module
    named = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    return entity(module, "HeartbeatRequest", **named)


def relieve(node: Node, now: float) -> None:
    """Look at all connections at this time, and cut some off if memory is short."""
    relief = node.server.relief
    for connection in list(node.server.connections):
        relief.look(connection, now)
    relief.relieve()


def untaken(node: Node, size: int) -> bytes:
    """Charge the node with a response that a client does not take."""
    piece = bytes(size)
    node.memory.pin([piece])
    return piece


async def test_a_long_request_waits_and_short_ones_go_on() -> None:
    async with small_node() as node:
        client, other = await with_topic(node), await Client.connect(node)
        frames = node.memory.frames
        frames.take(frames.capacity * 3 // 4)
        client.produce(batch(LARGE))
        await until(lambda: frames.waiting == 1)
        for _ in range(3):
            assert (await other.ask(METADATA, 5, metadata())).topics
        frames.give_back(frames.capacity * 3 // 4)
        assert await client.produced() == (0, 0)
        client.produce(batch(LARGE))
        assert await client.produced() == (0, 1)


async def test_one_request_larger_than_all_the_memory_is_served() -> None:
    async with small_node() as node:
        client, other = await with_topic(node), await Client.connect(node)
        value = b"x" * (SIZE // 2)
        client.produce(batch(value))
        other.produce(batch(LARGE), partition=1)
        assert (await client.produced())[0] == 10  # MESSAGE_TOO_LARGE: it was read to its end
        assert await other.produced() == (0, 0)


async def test_frames_of_nodes_never_wait() -> None:
    memory = RequestMemory(SIZE)
    memory.frames.take(2 * SIZE)
    node = Holding(memory.frame_shares, lambda: ("node", "10.0.0.1"))
    for key in (24, 27, 63):
        assert memory.admit_frame(key, 60_000, node, lambda: None) is None
    assert memory.admit_frame(63, MIB, node, lambda: None) is not None


def clients(shares: MemoryShares, count: int) -> list[Holding]:
    """Return the holdings of clients at addresses of their own."""

    def at(number: int) -> tuple[str, str]:
        return "hostile", f"10.0.0.{number}"

    return [Holding(shares, partial(at, number)) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 30, 200])
async def test_long_requests_that_never_arrive_leave_room_to_short_producers(count: int) -> None:
    memory = RequestMemory(SIZE)
    hostile = clients(memory.frame_shares, count)
    for number in range(20):
        for client in hostile:
            key = (METADATA, PRODUCE)[number % 2]
            memory.admit_frame(key, len(LARGE), client, lambda: None)
    assert memory.frames.waiting, "there are more than memory is there for"
    honest = Holding(memory.frame_shares, lambda: ("honest", "10.0.1.1"))
    for key in (PRODUCE, METADATA):
        assert memory.admit_frame(key, 60_000, honest, lambda: None) is None


@pytest.mark.parametrize("count", [1, 2, 3, 8, 30, 200])
async def test_clients_that_read_nothing_leave_room_to_those_that_read(count: int) -> None:
    memory = RequestMemory(SIZE)

    def fetch(client: Holding, *, is_reader: bool) -> bool:
        granted = memory.admit_response(FETCH, client, lambda: None, is_reader=is_reader) is None
        if granted:
            client.take(len(LARGE))  # the response, of which nothing is taken
        return granted

    deaf = clients(memory.response_shares, count)
    for _ in range(20):
        for client in deaf:
            fetch(client, is_reader=False)
    assert memory.responses.waiting, "there are more than memory is there for"
    honest = Holding(memory.response_shares, lambda: ("honest", "10.0.1.1"))
    assert memory.admit_response(METADATA, honest, lambda: None, is_reader=False) is None
    assert fetch(honest, is_reader=True)


async def test_producers_that_wait_for_the_store_do_not_stop_consumers() -> None:
    store = GatedStore()
    async with small_node(store) as node:
        client = await with_topic(node)
        client.produce(batch())
        assert await client.produced() == (0, 0)
        node.engine.writable = lambda: False  # type: ignore[method-assign]
        producers = [await Client.connect(node) for _ in range(40)]
        for producer in producers:
            producer.produce(batch(LARGE))
        await until(lambda: node.memory.frames.waiting > 0)
        for _ in range(20):
            client.fetch({0: 0})
            assert (await client.fetched())[0].high_watermark == 1
        del node.engine.writable
        node.backpressure.resume()
        for producer in producers:
            assert (await producer.produced())[0] == 0


async def test_untaken_responses_hold_up_long_answers_and_not_groups_or_producers() -> None:
    async with small_node() as node:
        client, other = await with_topic(node), await Client.connect(node)
        piece = untaken(node, SIZE)
        other.send(METADATA, 5, metadata())
        await until(lambda: node.memory.responses.waiting == 1)
        assert (await client.ask(HEARTBEAT, 3, heartbeat())).error_code
        client.produce(batch(LARGE))
        assert await client.produced() == (0, 0)
        node.memory.unpin([piece])
        assert (await other.receive()).topics


async def test_clients_that_leave_while_they_wait_leave_nothing() -> None:
    async with small_node() as node:
        client = await with_topic(node)
        frames, responses = node.memory.frames, node.memory.responses
        frames.take(frames.capacity)
        piece = untaken(node, SIZE)
        for number in range(1, 6):
            leaving = await Client.connect(node)
            leaving.produce(batch(LARGE))
            await until(lambda number=number: frames.waiting == number)  # type: ignore[misc]
        for number in range(1, 6):
            leaving = await Client.connect(node)
            leaving.send(METADATA, 5, metadata())
            await until(lambda number=number: responses.waiting == number)  # type: ignore[misc]
        assert (await client.ask(HEARTBEAT, 3, heartbeat())).error_code
        for connection in list(node.server.connections):
            connection.abort()
        await until(lambda: frames.waiting == responses.waiting == 0)
        frames.give_back(frames.capacity)
        node.memory.unpin([piece])


async def test_a_buffer_is_charged_once_however_many_wait_for_it() -> None:
    memory = RequestMemory(SIZE)
    buffer = bytearray(MIB)
    pieces = [memoryview(buffer)[at : at + 10] for at in range(100)]
    for _ in range(50):
        memory.pin(pieces)
    assert memory.responses.used == MIB
    for _ in range(50):
        memory.unpin(pieces)
    assert memory.responses.used == 0


async def test_what_a_slow_client_reads_is_whole_and_uncharged_as_it_is_taken() -> None:
    async with small_node() as node:
        client = await with_topic(node)
        for number in range(8):
            client.produce(batch(bytes([number]) * 1_000_000))
            assert (await client.produced())[0] == 0
        slow = await Client.connect(node)
        slow.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        found, offset, most = [], 0, 0
        while offset < 8:
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.fetch({0: offset}, max_bytes=50 * MIB)
            await until(lambda: node.memory.responses.used > 0)
            most = max(most, node.memory.responses.used)
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            records = (await slow.fetched())[0].records
            assert records is not None
            found.append(records)
            offset += len(records) // 1_000_000
        assert most <= 9 * MIB
        await until(lambda: node.memory.responses.used == 0)
        assert b"".join(found).count(b"\x07" * 999_000) == 1


async def deaf_client(node: Node) -> Client:
    """A consumer that has sent a request and does not read the response."""
    deaf = await Client.connect(node)
    deaf.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
    deaf.fetch({0: 0}, max_bytes=50 * MIB)
    return deaf


async def test_clients_that_take_nothing_leave_room_for_those_at_another_address() -> None:
    async with small_node() as node:
        client = await with_topic(node)
        for _ in range(8):
            client.produce(batch(b"x" * 1_000_000))
            assert (await client.produced())[0] == 0
        for _ in range(40):
            await deaf_client(node)
        await until(lambda: node.memory.responses.waiting > 20)
        responses = node.memory.responses
        assert responses.used < responses.capacity
        honest = await Client.connect_to(node.advertised_port, local_host="127.0.0.2")
        for _ in range(20):
            assert (await honest.ask(METADATA, 5, metadata())).topics
            honest.fetch({0: 7}, max_bytes=10_000)
            assert (await honest.fetched())[0].records
        assert node.server.relief.cut_total == 0


async def test_frames_that_do_not_arrive_leave_room_for_those_at_another_address() -> None:
    async with small_node() as node:
        await with_topic(node)
        for _ in range(40):
            slow = await Client.connect(node)
            slow.writer.write(struct.pack(">ihhih", MIB, 0, 8, 1, -1))
        await until(lambda: node.memory.frames.waiting > 20)
        honest = await Client.connect_to(node.advertised_port, local_host="127.0.0.2")
        for offset in range(20):
            honest.produce(batch(LARGE))
            assert await honest.produced() == (0, offset)
        assert node.server.relief.cut_total == 0


async def test_deaf_clients_are_cut_the_longest_deaf_first_and_only_when_memory_is_short() -> None:
    async with small_node() as node:
        client = await with_topic(node)
        for _ in range(8):
            client.produce(batch(b"x" * 1_000_000))
            assert (await client.produced())[0] == 0
        await deaf_client(node)
        await until(lambda: node.memory.responses.used > MIB // 2)
        (deaf,) = [one for one in node.server.connections if one.untaken]
        relief, now = node.server.relief, node.clock.monotonic()
        relieve(node, now)
        relieve(node, now + 10 * DEAF_S)
        assert relief.cut_total == 0, "there is room for all"
        piece = untaken(node, SIZE)
        relieve(node, now + DEAF_S - 1)
        assert relief.cut_total == 0, "it may be about to read"
        relieve(node, now + DEAF_S + 1)
        assert relief.cut_total == 1
        await until(lambda: not deaf.is_open)
        node.memory.unpin([piece])
        assert (await client.ask(METADATA, 5, metadata())).topics


async def test_a_promised_frame_that_does_not_come_is_given_up_when_others_wait() -> None:
    async with small_node() as node:
        client = await with_topic(node)
        slow = await Client.connect(node)
        slow.writer.write(struct.pack(">ihh", 50 * MIB, 0, 8))
        await until(lambda: node.memory.frames.used > 0)
        client.produce(batch(LARGE))
        await until(lambda: node.memory.frames.waiting == 1)
        relief, now = node.server.relief, node.clock.monotonic()
        relieve(node, now)
        assert relief.cut_total == 0
        relieve(node, now + DEAF_S + 2)
        assert relief.cut_total == 1
        assert await client.produced() == (0, 0)
        async with asyncio.timeout(LIMIT_S):
            assert await slow.reader.read() == b""


@pytest.mark.parametrize("cut", range(1, 9))
async def test_frames_in_pieces_of_any_size_wait_and_arrive_whole(cut: int) -> None:
    async with small_node() as node:
        client = await with_topic(node)
        frames = node.memory.frames
        frames.take(frames.capacity)
        writer, write = client.writer, client.writer.write
        written: list[bytes] = []
        writer.write = written.append  # type: ignore[method-assign, assignment]
        client.produce(batch(LARGE))
        client.produce(batch(LARGE))
        data = b"".join(written)
        write(data[:cut])
        await asyncio.sleep(0.01)
        write(data[cut:])
        await until(lambda: frames.waiting == 1)
        frames.give_back(frames.capacity)
        assert [await client.produced() for _ in range(2)] == [(0, 0), (0, 1)]


async def test_a_connection_keeps_the_opening_of_its_requests_only_if_that_is_short() -> None:
    """No memory is charged for it, and it lasts as long as the connection."""

    def without_topics(tagged: int) -> bytes:
        tags = b"\x01\x63" + encode_uvarint(tagged) + bytes(tagged)
        body = b"\x00" + struct.pack(">hi", 1, 1000) + b"\x01\x00"
        return frame(struct.pack(">hhih", PRODUCE, 9, 7, -1) + tags + body)

    async with small_node() as node:
        client = await with_topic(node)
        for tagged, is_kept in ((MIB, False), (8, True)):
            client.writer.write(without_topics(tagged))
            size = int.from_bytes(await client.reader.readexactly(4), "big")
            await client.reader.readexactly(size)
            (connection,) = node.server.connections
            assert (connection.last_opening is not None) is is_kept
