"""What a node asks others: over real connections to a peer that answers late, wrongly or not at
all; what it said late is never taken for the answer to the next question.
"""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import InterBrokerClient, TcpNetwork
from lakehead.broker.cluster.sasl_network import SaslNetwork
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_response
from lakehead.broker.protocol.messages import entity
from lakehead.storage.metadata.state import MetadataImage, NodeState

KEY, VERSION = 26, 3
PEER = 7
LIMIT_S = 30.0
CODE = ErrorCode.concurrent_transactions
Reply = Callable[[int, asyncio.StreamWriter], None]


def request(number: int) -> Any:
    return entity(
        schema(KEY, VERSION).request_module,
        "EndTxnRequest",
        transactional_id="x",
        producer_id=number,
        producer_epoch=0,
        committed=True,
    )


def response(correlation_id: int) -> bytes:
    module = schema(KEY, VERSION).response_module
    return encode_response(entity(module, "EndTxnResponse", error_code=CODE), correlation_id)


class Peer:
    """A node that does with each question what it is told to."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked = 0
        self.connections: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                frame = await reader.readexactly(size)
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                assert (key, version) == (KEY, VERSION)
                self.asked += 1
                (self.replies.pop(0) if self.replies else answer)(correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()


def answer(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(response(correlation_id))


def stay_silent(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    pass


def answer_another(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(response(correlation_id - 1))


def hang_up(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def babble(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def end_early(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(struct.pack(">iib", 5, correlation_id, 0))


async def refuse(key: int, version: int, message: Any) -> Any:
    raise AssertionError("this node was not asked")


@asynccontextmanager
async def asking(timeout_s: float = 5.0) -> AsyncIterator[tuple[InterBrokerClient, Peer]]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    node = NodeState(node_id=PEER, epoch=1, incarnation="i", host="127.0.0.1", port=port, rack=None)
    state = MetadataImage(nodes=Map({PEER: node}))
    client = InterBrokerClient(1, TcpNetwork(), lambda: state, refuse, timeout_s=timeout_s)
    try:
        yield client, peer
    finally:
        client.close()
        server.close()
        for writer in peer.connections:
            writer.close()


async def test_questions_share_a_connection_one_after_the_other() -> None:
    async with asking() as (client, peer):
        tasks = [client.send(PEER, KEY, VERSION, request(n)) for n in range(5)]
        answers = await asyncio.gather(*tasks)
        assert [one.error_code for one in answers] == [CODE] * 5
        assert (peer.asked, len(peer.connections)) == (5, 1)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (stay_silent, TimeoutError),
        (answer_another, MalformedFrame),
        (babble, MalformedFrame),
        (end_early, MalformedFrame),
        (hang_up, OSError),
    ],
)
async def test_after_a_fault_the_next_question_has_a_connection_of_its_own(
    fault: Reply, error: type[Exception]
) -> None:
    async with asking(timeout_s=0.2) as (client, peer):
        peer.replies = [answer, fault]
        await client.send(PEER, KEY, VERSION, request(1))
        with pytest.raises(error):
            await client.send(PEER, KEY, VERSION, request(2))
        assert (await client.send(PEER, KEY, VERSION, request(3))).error_code is CODE
        assert len(peer.connections) == 2


async def test_a_node_that_is_not_there_is_an_error_at_once() -> None:
    async with asking() as (client, peer):
        with pytest.raises(OSError, match="does not serve"):
            await client.send(99, KEY, VERSION, request(1))
        assert peer.asked == 0


async def test_this_node_answers_itself_in_the_process() -> None:
    asked: list[tuple[int, int]] = []

    async def own(key: int, version: int, message: Any) -> Any:
        asked.append((key, version))
        return message

    client = InterBrokerClient(1, TcpNetwork(), MetadataImage, own, timeout_s=1)
    message = request(1)
    assert await client.send(1, KEY, VERSION, message) is message
    assert asked == [(KEY, VERSION)]


async def test_a_stopped_process_with_tls_and_sasl_still_takes_a_probe() -> None:
    context = ssl.create_default_context()
    network = SaslNetwork(TcpNetwork(lambda: context), 1, "SCRAM-SHA-512", random.Random(1))
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # which accepts nothing
        host, port = stopped.getsockname()
        async with asyncio.timeout(LIMIT_S):
            await network.probe(host, port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await network.connect(host, port, lambda: None)
    with pytest.raises(ConnectionRefusedError):
        await network.probe(host, port)
