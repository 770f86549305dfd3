"""Open files are few and clients many: storage, metadata and other nodes still find descriptors."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from lakehead.broker.cluster.heartbeat import Heartbeat
from lakehead.broker.cluster.inter_broker_client import TcpNetwork, probe
from lakehead.broker.network.connection_quotas import UNDECIDED_MAX, ConnectionQuotas
from lakehead.broker.node import Node
from lakehead.broker.open_files import raise_open_file_limit
from tests.integration.test_node_protocol import running, until
from tests.support.node_client import LIMIT_S, Client
from tests.support.repetitions import repetitions
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until
from tests.support.wire import API_VERSIONS, Batch, Wire, frame, header

HARD = 256
FLAGS = ("--upload.age.ms", "100", "--metadata.poll.ms", "50", "--maintain", "false")


@contextmanager
def limited_server(folder: Path, soft: int, hard: int) -> Iterator[ServerProcess]:
    """A node in a process that was given these limits of open files."""
    raise_open_file_limit()
    under = ("-c", LIMITED.format(soft=soft, hard=hard))
    with lakehead_server(folder, *FLAGS, under=under) as server:
        yield server


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
sys.argv = sys.argv[sys.argv.index("lakehead"):]
runpy.run_module("lakehead", run_name="__main__", alter_sys=True)
"""


def idle(stack: ExitStack, server: ServerProcess, count: int) -> list[Wire]:
    return [stack.enter_context(Wire(server.port)) for _ in range(count)]


def uploaded(folder: Path) -> int:
    return sum(1 for one in (folder / "data" / "store" / "data").rglob("*") if one.is_file())


def test_clients_beyond_the_descriptors_do_not_stop_uploads_and_metadata(tmp_path: Path) -> None:
    with limited_server(tmp_path, HARD, HARD) as server, Wire(server.port) as honest:
        create_topic(server.bootstrap, "before", 1)
        with ExitStack() as stack:
            idle(stack, server, 3 * HARD)
            for number in range(repetitions(20, 5)):
                before = uploaded(tmp_path)
                value = b"%d" % number
                assert honest.produce_error("before", 0, Batch(values=(value,)).encode()) == 0
                assert wait_until(lambda before=before: uploaded(tmp_path) > before, 30)  # type: ignore[misc]
            assert psutil.Process(server.process.pid).num_fds() < HARD
        assert wait_until(lambda: serves(server), 30), "it serves new clients when others have left"
        create_topic(server.bootstrap, "after", 1)
    log = server.log.read_text()
    assert "Too many open files" not in log
    assert log.count("connections_full") == 1


def serves(server: ServerProcess) -> bool:
    with Wire(server.port) as wire:
        return wire.ask(header(API_VERSIONS, 0)) is not None


@pytest.mark.parametrize("soft", [64, 256])
def test_the_soft_limit_is_raised_to_the_hard_one_at_the_start(tmp_path: Path, soft: int) -> None:
    hard = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    with limited_server(tmp_path, soft, hard) as server, ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        assert process.rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)
        for wire in idle(stack, server, 2 * HARD):
            assert wire.ask(header(API_VERSIONS, 0)) is not None


def heartbeat(node: Node) -> Heartbeat:
    """What a node that wants to know who is there says first."""
    state = node.state
    return Heartbeat(node_id=-1, epoch=-1, next_entry=state.next_entry, cluster_id=state.cluster_id)


async def test_where_clients_have_no_place_another_node_has_one() -> None:
    async with running(max_connections=2) as node:
        clients = [await Client.connect(node) for _ in range(2)]
        await until(lambda: len(node.server.connections) == 2)
        port = node.advertised_port
        for _ in range(10):
            answer = await probe(TcpNetwork(), "127.0.0.1", port, heartbeat(node), LIMIT_S)
            assert answer is not None
            assert answer.node_id == node.node_id
        beyond = await Client.connect(node)
        beyond.writer.write(frame(header(API_VERSIONS, 0)))
        async with asyncio.timeout(LIMIT_S):
            assert await beyond.reader.read() == b""
        assert node.server.refused_total == 1
        clients[0].writer.write(frame(header(API_VERSIONS, 0)))
        async with asyncio.timeout(LIMIT_S):
            assert await clients[0].reader.readexactly(4)


async def test_silent_connections_without_a_place_are_few_and_make_room_for_nodes() -> None:
    async with running(max_connections=2) as node:
        accepted = node.server.accepted_total
        for _ in range(100):
            await Client.connect(node)
        await until(lambda: node.server.accepted_total == accepted + 100)
        assert len(node.server.connections) <= 2 + UNDECIDED_MAX
        answer = await probe(
            TcpNetwork(), "127.0.0.1", node.advertised_port, heartbeat(node), LIMIT_S
        )
        assert answer is not None
        await until(lambda: len(node.server.connections) == 2)
        assert node.server.refused_total == 98


@pytest.mark.parametrize("open_files", [64, 256, 1024, 20_000, 1 << 20])
def test_there_are_places_and_a_reserve_whatever_the_limit(open_files: int) -> None:
    quotas = ConnectionQuotas(lambda: 1 << 30, lambda _: None, open_files)
    assert quotas.most + quotas.reserve == open_files
    assert quotas.most >= open_files // 2
    assert quotas.reserve >= min(open_files // 2, 128)
    assert quotas.backlog + UNDECIDED_MAX <= quotas.reserve * 3 // 4
    few = ConnectionQuotas(lambda: 7, lambda _: None, open_files)
    assert few.most == 7
