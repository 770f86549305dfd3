"""Requests of every API and version, cut short or with a damaged length, over a real connection.

The broker answers with one of Kafka's errors or closes the connection; the other connections go on,
and nothing of it reaches the log as a traceback.
"""

import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from bench.process import ServerProcess
from lakehead.broker import api
from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.frame import encode_request
from tests.support import wire as protocol
from tests.support.forked_server import forked_server
from tests.support.message_values import messages
from tests.support.wire import Wire

SERVED = [served for served in api.registry().apis() if not served.is_internal]
CUTS_PER_VERSION = 12
LENGTHS = (b"\xff\xff", b"\x7f\xff", b"\x80\x00", b"\xff\xff\xff\x7f", b"\x00\x00")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with forked_server(tmp_path_factory.mktemp("damage"), "--wal.size", "64m") as running:
        yield running


def made(key: int, version: int) -> bytes:
    """A whole request, without the length before it."""
    cls: Any = schema(key, version).request_class
    found: list[Any] = []

    @seed(key * 100 + version)
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(cls))
    def draw(message: Any) -> None:
        found.append(message)

    draw()
    return encode_request(key, version, 7, found[-1])[4:]


def damaged(whole: bytes, rng: random.Random) -> Iterator[bytes]:
    """Frames: the request cut inside its frame, and with other bytes where lengths may stand."""
    sizes = range(8, len(whole))
    for size in rng.sample(sizes, min(CUTS_PER_VERSION, len(sizes))):
        yield protocol.frame(whole[:size])
    for length in LENGTHS:
        place = rng.randrange(8, len(whole) + 1)
        yield protocol.frame(whole[:place] + length + whole[place + len(length) :])
    yield struct.pack(">i", len(whole) + 1000) + whole
    yield struct.pack(">i", max(0, len(whole) - 3)) + whole


@pytest.mark.parametrize("served", SERVED, ids=lambda served: served.name)
def test_damaged_requests_harm_nobody_else(server: ServerProcess, served: Api) -> None:
    rng = random.Random(served.key)
    with Wire(server.port) as bystander:
        for version in range(served.versions[0], served.versions[1] + 1):
            for frame in damaged(made(served.key, version), rng):
                with Wire(server.port) as hostile:
                    hostile.send(frame)
                    hostile.finish()
            answer = bystander.ask(protocol.header(protocol.API_VERSIONS, 0))
            assert answer is not None
            assert answer[:2] == b"\0\0"


def test_no_traceback_was_logged(server: ServerProcess) -> None:
    assert re.findall(r"Traceback|Error:", server.log.read_text()) == []
