"""Clients that talk nonsense, too much, too slowly or not at all: only they are the worse for it.

After each, the other clients still produce and consume, and the broker's memory is bounded.
`HOSTILE_SEEDS` sets how many seeds of random garbage are tried.
"""

import os
import random
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bench.process import ServerProcess
from tests.support import wire as protocol
from tests.support.broker_process import server_under_test
from tests.support.repetitions import repetitions
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until
from tests.support.wire import Batch, Wire, frame

TOPIC, BULK = "bystanders", "bulk"
SEEDS = int(os.environ.get("HOSTILE_SEEDS", repetitions(30, 10)))
IDLE_CONNECTIONS = 1000
GROWTH_BYTES_MAX = 128 << 20
HUGE = 2**31 - 1
KAFKA = os.environ.get("BROKER") == "kafka"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with server_under_test(folder, "--cache.size", "64m", "--upload.size", "16m") as running:
        create_topic(running.bootstrap, TOPIC, 1)
        create_topic(running.bootstrap, BULK, 1)
        with Wire(running.port) as wire:
            for _ in range(16):
                assert wire.produce_error(BULK, 0, Batch(values=(b"x" * 900_000,)).encode()) == 0
        yield running


@pytest.fixture
def unharmed(server: ServerProcess) -> Iterator[ServerProcess]:
    """The broker; afterwards it serves others as before and has not grown."""
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with Wire(server.port) as old_connection:
        serves(old_connection)
        yield server
        serves(old_connection)
    with Wire(server.port) as new_connection:
        serves(new_connection)
    grown = process.memory_info().rss - before
    assert grown < GROWTH_BYTES_MAX, f"the broker grew by {grown >> 20} MiB"


def serves(wire: Wire) -> None:
    """Produce a record and read it back."""
    end = wire.end_offset(TOPIC, 0)
    records = Batch(values=(b"%d" % end,)).encode()
    assert wire.produce_error(TOPIC, 0, records) == 0
    answer = wire.ask(protocol.fetch_request(TOPIC, 0, end))
    assert answer is not None
    assert records[61:] in answer


def closes(port: int, payload: bytes) -> None:
    """Send bytes; the server must close the connection, whatever it says before."""
    with Wire(port) as wire:
        try:
            wire.send(payload)
        except ConnectionError:
            return
        wire.wait_closed()


@pytest.mark.parametrize(
    "length", [-1, -(2**31), HUGE, HUGE - 4, 100 * (1 << 20) + 1], ids=lambda length: f"{length}"
)
def test_an_impossible_length_closes_the_connection(unharmed: ServerProcess, length: int) -> None:
    closes(unharmed.port, struct.pack(">i", length))
    closes(unharmed.port, struct.pack(">i", length) + b"\0" * 4096)


def test_a_length_too_short_for_a_header_closes_the_connection(unharmed: ServerProcess) -> None:
    for length in range(8):
        closes(unharmed.port, frame(b"\0" * length))


def test_random_bytes(unharmed: ServerProcess) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        with Wire(unharmed.port) as wire:
            wire.send(rng.randbytes(rng.randrange(1, 5000)))
            wire.finish()


def test_every_prefix_of_a_request(unharmed: ServerProcess) -> None:
    whole = frame(protocol.produce_request(TOPIC, 0, Batch().encode()))
    with Wire(unharmed.port) as wire:
        end = wire.end_offset(TOPIC, 0)
        for size in range(0, len(whole), 3):
            with Wire(unharmed.port) as cut:
                cut.send(whole[:size])
                cut.finish()
        assert wire.end_offset(TOPIC, 0) == end


def test_a_request_that_ends_early_inside_its_frame(unharmed: ServerProcess) -> None:
    """The frame is as long as it says, but the request in it is cut anywhere."""
    whole = protocol.produce_request(TOPIC, 0, Batch().encode())
    with Wire(unharmed.port) as wire:
        end = wire.end_offset(TOPIC, 0)
        for size in range(8, len(whole), 3):
            with Wire(unharmed.port) as cut:
                cut.send(frame(whole[:size]))
                cut.finish()
        assert wire.end_offset(TOPIC, 0) == end


@pytest.mark.parametrize("key", [4, 6, 99, 9999, -1, -32768, 32767])
def test_an_unknown_api_closes_the_connection(unharmed: ServerProcess, key: int) -> None:
    closes(unharmed.port, frame(protocol.header(key, 0) + b"\0" * 32))


def advertised(port: int) -> dict[int, tuple[int, int]]:
    """Versions by API key, from ApiVersions v0."""
    with Wire(port) as wire:
        answer = wire.ask(protocol.header(protocol.API_VERSIONS, 0))
    assert answer is not None
    (count,) = struct.unpack_from(">i", answer, 2)
    items = struct.iter_unpack(">hhh", answer[6 : 6 + 6 * count])
    return {key: (least, most) for key, least, most in items}


def test_an_unknown_version_of_any_api(unharmed: ServerProcess) -> None:
    for key, (_, most) in advertised(unharmed.port).items():
        for version in (most + 1, 99, 32767, -1):
            if key == protocol.API_VERSIONS:
                with Wire(unharmed.port) as wire:
                    answer = wire.ask(protocol.header(key, version) + b"\0" * 16)
                if version > 0:
                    assert answer is not None
                    error, count = struct.unpack_from(">hi", answer)
                    assert error == 35
                    assert count == len(advertised(unharmed.port)) or KAFKA
            else:
                closes(unharmed.port, frame(protocol.header(key, version) + b"\0" * 16))


def test_garbage_and_huge_counts_in_every_version_of_every_api(unharmed: ServerProcess) -> None:
    """A right header, then a body that is noise, or arrays and strings of 2 Gi items."""
    rng = random.Random(7)
    bodies: dict[str, Callable[[], bytes]] = {
        "noise": lambda: rng.randbytes(rng.randrange(1, 300)),
        "huge": lambda: struct.pack(">i", HUGE) * 40,
        "huge compact": lambda: b"\xff\xff\xff\xff\x0f" * 40,
        "varint without end": lambda: b"\xff" * 200,
        "nothing": lambda: b"",
        "zeros": lambda: b"\0" * 200,
        "minus one": lambda: struct.pack(">i", -1) * 40,
    }
    for key, (least, most) in advertised(unharmed.port).items():
        for version in range(least, most + 1):
            for make in bodies.values():
                head = protocol.header(key, version)
                for body in (make(), b"\0" + make()):  # the second: an empty tag section before
                    with Wire(unharmed.port) as wire:
                        wire.send(frame(head + body))
                        wire.finish()


def test_a_tls_hello_on_a_plain_port_closes_the_connection(unharmed: ServerProcess) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with Wire(unharmed.port) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain.socket)


def test_http_on_the_kafka_port_closes_the_connection(unharmed: ServerProcess) -> None:
    closes(unharmed.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_idle_connections(unharmed: ServerProcess) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(Wire(unharmed.port)) for _ in range(IDLE_CONNECTIONS)]
        half = frame(protocol.produce_request(TOPIC, 0, Batch().encode()))[:-5]
        for index, wire in enumerate(idle):
            # a third silent, a third with only a length, a third in the middle of a request
            wire.send((b"", half[:4], half)[index % 3])
        with Wire(unharmed.port) as bystander:
            for _ in range(20):
                serves(bystander)


def test_a_client_byte_by_byte(unharmed: ServerProcess) -> None:
    request = frame(protocol.produce_request(TOPIC, 0, Batch().encode()))
    with Wire(unharmed.port) as slow, Wire(unharmed.port) as bystander:
        slow.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(request)):
            slow.send(request[index : index + 1])
            if index % 20 == 0:
                serves(bystander)
        assert slow.receive() is not None


def test_a_client_that_never_reads_what_it_fetches(unharmed: ServerProcess) -> None:
    request = frame(protocol.fetch_request(BULK, 0, 0))
    with Wire(unharmed.port) as deaf, Wire(unharmed.port) as bystander:
        deaf.socket.settimeout(0.5)
        try:
            for _ in range(20_000):  # 280 GB of answers, if the server were to make them all
                deaf.send(request)
        except TimeoutError:
            pass
        for _ in range(20):
            serves(bystander)


def test_a_client_that_never_reads_small_answers(unharmed: ServerProcess) -> None:
    request = frame(protocol.header(protocol.API_VERSIONS, 0)) * 100
    with Wire(unharmed.port) as deaf, Wire(unharmed.port) as bystander:
        deaf.socket.settimeout(0.5)
        try:
            for _ in range(20_000):
                deaf.send(request)
        except TimeoutError:
            pass
        serves(bystander)


def test_connections_cut_in_the_middle_of_an_answer(unharmed: ServerProcess) -> None:
    for _ in range(50):
        with Wire(unharmed.port) as wire:
            wire.send(frame(protocol.fetch_request(BULK, 0, 0)) * 3)
            wire.socket.recv(1000)
            reset = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)


def test_ten_thousand_refused_requests_leave_no_memory_behind(unharmed: ServerProcess) -> None:
    wrong = Batch(values=(b"x" * 10_000,), crc=1).encode()
    with Wire(unharmed.port) as wire:
        for _ in range(500):
            wire.send(frame(protocol.produce_request(TOPIC, 0, wrong)) * 20)
            for _ in range(20):
                assert wire.receive() is not None


def test_no_descriptor_is_left_open(server: ServerProcess) -> None:
    process = psutil.Process(server.process.pid)
    with Wire(server.port) as wire:
        serves(wire)
    assert wait_until(lambda: len(process.net_connections("tcp")) < 20, 20)


def test_the_broker_logged_no_traceback(server: ServerProcess) -> None:
    """Last of the module: bad input is expected, so none of it may surprise the broker."""
    if KAFKA:
        pytest.skip("Kafka logs tracebacks of bad requests")
    assert re.findall(r"Traceback|Error:", server.log.read_text()) == []
