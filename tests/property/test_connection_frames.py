"""However the bytes of frames arrive, each frame is started once, whole and in order; garbage ends
the connection after what came before it."""

import asyncio
from typing import TYPE_CHECKING, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.broker.network.connection import (
    CONTROL_REQUEST_MAX,
    FIRST_PIECE,
    LONG_FRAME,
    PIPELINE_MAX,
    READ_AHEAD,
    Connection,
)
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.request_memory import RECEIVED_AT_ONCE, RequestMemory
from tests.support.repetitions import examples

if TYPE_CHECKING:
    from lakehead.broker.network.server import Server

FRAME_MAX = 3 * FIRST_PIECE
SIZES = st.integers(8, 40) | st.sampled_from([READ_AHEAD - 4, READ_AHEAD, 2000])
CHUNKS = st.lists(st.integers(1, 700), min_size=1, max_size=30)


class Transport:
    """Notes whether it is read from."""

    def __init__(self) -> None:
        self.is_reading, self.is_aborted = True, False

    def get_extra_info(self, _name: str) -> None: ...

    def set_write_buffer_limits(self, **_limits: int) -> None: ...

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_aborted = True


class Requests:
    """What a connection wants of its server: takes frames, and answers them when it is told to."""

    now = 0.0
    write_buffer_bytes = 1 << 16
    request_max_bytes = FRAME_MAX

    def __init__(self) -> None:
        self.memory = RequestMemory(1 << 30)
        self.frames: list[bytes] = []
        self.rejected_with = ""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def handle(self, connection: Connection, frame: bytearray) -> bool:
        self.frames.append(bytes(frame))
        self.slot = connection.slot()
        return True

    def throttled(self, connections: int) -> None: ...

    def rejected(self, connection: Connection, reason: str) -> None:
        self.rejected_with = reason
        connection.abort()


async def received(
    stream: bytes, chunks: list[int], request_max_bytes: int = FRAME_MAX
) -> Requests:
    """Feed a connection, never more than it has room for, and only while it reads."""
    requests, transport, at, turn = Requests(), Transport(), 0, 0
    requests.request_max_bytes = request_max_bytes
    connection = Connection(cast("Server", requests), Listener(name="PLAINTEXT"))
    connection.connection_made(cast(asyncio.Transport, transport))
    while at < len(stream) and not transport.is_aborted:
        room = connection.get_buffer(-1)
        size = min(len(room), chunks[turn % len(chunks)], len(stream) - at)
        assert size > 0
        room[:size] = stream[at : at + size]
        room.release()
        at, turn = at + size, turn + 1
        connection.buffer_updated(size)
        while not connection.is_idle:
            requests.slot.complete([b"answer"])
            await asyncio.sleep(0)
        assert transport.is_reading or transport.is_aborted
    return requests


def framed(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=12), CHUNKS, st.booleans())
@example([FIRST_PIECE + 5, 8], [1 << 22], False)
def test_frames_are_whole_and_in_order(sizes: list[int], chunks: list[int], is_last: bool) -> None:
    frames = [b"\0\3" + bytes([n]) * (size - 2) for n, size in enumerate(sizes)]
    garbage = b"\0\0\0\7ABCDEFG" if is_last else b""
    requests = asyncio.run(received(framed(frames) + garbage, chunks))
    assert requests.frames == frames[: len(requests.frames)]
    assert bool(requests.rejected_with) == is_last
    if not is_last:
        assert requests.frames == frames


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 93), st.sampled_from([0, 1, 5]), CHUNKS)
def test_a_request_without_records_is_refused_by_the_size_that_it_announces(
    key: int, before: int, chunks: list[int]
) -> None:
    """Before its bytes are read or paid for, and after what came before it."""
    heads = [b"\0\3" + bytes(20)] * before
    announced = (CONTROL_REQUEST_MAX + 1).to_bytes(4, "big") + key.to_bytes(2, "big") + bytes(600)
    requests = asyncio.run(received(framed(heads) + announced, chunks, 100 << 20))
    assert requests.frames == heads
    assert requests.rejected_with
    assert not requests.memory.frames.used
    records = (CONTROL_REQUEST_MAX + 1).to_bytes(4, "big") + bytes(600)
    taken = asyncio.run(received(framed(heads) + records, chunks, 100 << 20))
    assert not taken.rejected_with
    assert taken.memory.frames.used == CONTROL_REQUEST_MAX + 1


def test_a_read_takes_many_requests_only_while_all_of_them_have_room() -> None:
    async def world() -> None:
        requests = Requests()
        connection = Connection(cast("Server", requests), Listener(name="PLAINTEXT"))
        connection.connection_made(cast(asyncio.Transport, Transport()))
        frames = requests.memory.frames
        assert len(connection.get_buffer(-1)) == RECEIVED_AT_ONCE
        frames.take(frames.capacity * 5 // 16)
        assert len(connection.get_buffer(-1)) == READ_AHEAD
        frames.give_back(frames.used)
        connection.is_authenticated = False
        assert len(connection.get_buffer(-1)) == READ_AHEAD
        connection.is_authenticated = True
        for size, room in ((LONG_FRAME + 1, READ_AHEAD), (20, RECEIVED_AT_ONCE)):
            rest = framed([b"\0\0" + bytes(size - 2)])
            while rest:
                buffer = connection.get_buffer(-1)
                taken = min(len(buffer), len(rest))
                buffer[:taken], rest = rest[:taken], rest[taken:]
                connection.buffer_updated(taken)
            assert len(connection.get_buffer(-1)) == room
        connection.throttle(5.0)
        assert len(connection.get_buffer(-1)) == READ_AHEAD

    asyncio.run(world())


def test_what_waits_behind_the_requests_of_a_read_is_charged_and_not_read_on() -> None:
    async def world() -> None:
        requests, transport = Requests(), Transport()
        connection = Connection(cast("Server", requests), Listener(name="PLAINTEXT"))
        connection.connection_made(cast(asyncio.Transport, transport))
        frame = b"\0\0" + bytes(1000)
        stream = framed([frame] * (PIPELINE_MAX + 3))
        connection.get_buffer(-1)[: len(stream)] = stream
        connection.buffer_updated(len(stream))
        assert requests.frames == [frame] * PIPELINE_MAX
        assert requests.memory.frames.used == len(frame) + len(framed([frame, frame]))
        assert not transport.is_reading
        connection.connection_lost(None)
        assert requests.memory.frames.used == 0

    asyncio.run(world())
