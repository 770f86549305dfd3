"""A quota mutes a connection: nothing of it starts and no memory is taken meanwhile, however its
client sends; afterwards every frame starts once, in order; an end of the connection frees all."""

import asyncio
from typing import TYPE_CHECKING, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.network.connection import FIRST_PIECE, READ_AHEAD, Connection, Slot
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.request_memory import RequestMemory
from tests.simulation.loop import simulate
from tests.support.repetitions import examples

if TYPE_CHECKING:
    from lakehead.broker.network.server import Server

PRODUCE, METADATA = b"\0\0", b"\0\3"
SIZES = st.integers(8, 40) | st.sampled_from([READ_AHEAD - 4, READ_AHEAD, 2000, FIRST_PIECE + 5])
FRAMES = st.lists(
    st.tuples(st.sampled_from([PRODUCE, METADATA]), SIZES, st.sampled_from([0.0, 0.0, 0.5, 7.0])),
    min_size=1,
    max_size=12,
)
CHUNKS = st.lists(st.integers(1, 3000), min_size=1, max_size=20)


class Transport:
    """Notes whether it is read from."""

    def __init__(self) -> None:
        self.is_reading = True

    def get_extra_info(self, _name: str) -> None: ...

    def set_write_buffer_limits(self, **_limits: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None: ...

    def writelines(self, data: list[bytes]) -> None: ...

    def abort(self) -> None: ...


class ThrottlingServer:
    """Throttles the connection at each frame for the time that is meant for it."""

    now = 0.0
    write_buffer_bytes = 1 << 16
    request_max_bytes = 3 * FIRST_PIECE

    def __init__(self, throttles: list[float]) -> None:
        self.memory = RequestMemory(1 << 30)
        self.frames: list[bytes] = []
        self.started_at: list[float] = []
        self.muted_now = 0
        self._throttles = throttles

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def throttled(self, connections: int) -> None:
        self.muted_now += connections

    def handle(self, connection: Connection, frame: bytearray) -> bool:
        loop = asyncio.get_running_loop()
        assert not connection.is_throttled
        seconds = self._throttles[len(self.frames)]
        self.frames.append(bytes(frame))
        self.started_at.append(loop.time())
        slot = connection.slot()
        if seconds:
            connection.throttle(seconds)
        loop.call_later(0.01, self._respond, slot)
        return True

    def _respond(self, slot: Slot) -> None:
        if slot.connection.is_open:
            slot.complete([b"response"])


async def fed(
    stream: bytes, chunks: list[int], server: ThrottlingServer, most: int | None = None
) -> tuple[Connection, Transport]:
    """Feed a connection whenever it reads; stop after `most` bytes."""
    transport = Transport()
    connection = Connection(cast("Server", server), Listener(name="PLAINTEXT"))
    connection.connection_made(cast(asyncio.Transport, transport))
    at = turn = 0
    end = len(stream) if most is None else min(most, len(stream))
    while at < end:
        if not transport.is_reading:
            held, started = server.memory.frames.used, len(server.frames)
            await asyncio.sleep(0.1)
            if connection.is_throttled and started == len(server.frames):
                assert server.memory.frames.used <= held
            continue
        room = connection.get_buffer(-1)
        size = min(len(room), chunks[turn % len(chunks)], end - at)
        assert size > 0
        room[:size] = stream[at : at + size]
        room.release()
        at, turn = at + size, turn + 1
        connection.buffer_updated(size)
    return connection, transport


def framed(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@settings(max_examples=examples(60), deadline=None)
@given(FRAMES, CHUNKS)
def test_nothing_starts_while_muted_and_everything_afterwards(
    asked: list[tuple[bytes, int, float]], chunks: list[int]
) -> None:
    frames = [key + bytes([n]) * (size - 2) for n, (key, size, _) in enumerate(asked)]
    server = ThrottlingServer([seconds for _, _, seconds in asked])

    async def world() -> None:
        connection, transport = await fed(framed(frames), chunks, server)
        await asyncio.sleep(200)
        assert server.frames == frames
        assert not connection.is_throttled
        assert transport.is_reading
        assert server.memory.frames.used == 0

    simulate(world, seed=1)
    assert server.muted_now == 0
    begun = zip(server.started_at, server.started_at[1:], strict=False)
    for (_, _, seconds), (start, following) in zip(asked, begun, strict=False):
        assert following - start >= seconds - 1e-9


@settings(max_examples=examples(45), deadline=None)
@given(FRAMES, CHUNKS, st.integers(0, 8000))
def test_the_end_of_a_muted_connection_frees_all(
    asked: list[tuple[bytes, int, float]], chunks: list[int], most: int
) -> None:
    frames = [key + bytes([n]) * (size - 2) for n, (key, size, _) in enumerate(asked)]
    server = ThrottlingServer([seconds for _, _, seconds in asked])

    async def world() -> int:
        connection, _ = await fed(framed(frames), chunks, server, most)
        connection.connection_lost(None)
        assert server.muted_now == 0
        assert server.memory.frames.used == 0
        started = len(server.frames)
        await asyncio.sleep(100)
        return started

    assert simulate(world, seed=1) == len(server.frames)
    assert server.memory.frames.used == 0


def test_a_longer_throttle_time_is_kept_and_a_shorter_one_extends_nothing() -> None:
    server = ThrottlingServer([0.0, 0.0])
    frames = [PRODUCE + bytes(20)] * 2

    async def world() -> None:
        connection = Connection(cast("Server", server), Listener(name="PLAINTEXT"))
        connection.connection_made(cast(asyncio.Transport, Transport()))
        connection.throttle(5.0)
        connection.throttle(1.0)
        connection.throttle(8.0)
        stream = framed(frames)
        connection.get_buffer(-1)[: len(stream)] = stream
        connection.buffer_updated(len(stream))
        await asyncio.sleep(20)

    simulate(world, seed=1)
    assert server.started_at == [8.0, 8.0]


def test_a_muted_client_that_sends_nothing_is_still_read_so_that_its_end_is_seen() -> None:
    server = ThrottlingServer([9.0])

    async def world() -> None:
        connection, transport = await fed(framed([PRODUCE + bytes(20)]), [100], server)
        await asyncio.sleep(1)
        assert connection.is_throttled
        assert transport.is_reading
        connection.get_buffer(-1)[:1] = b"\0"
        connection.buffer_updated(1)
        assert not transport.is_reading

    simulate(world, seed=1)


def test_a_frame_that_waits_while_muted_can_be_cut_off_for_memory() -> None:
    """The relief of memory sees what a client sent without regard to its throttle time."""
    server = ThrottlingServer([0.0, 60.0, 0.0])
    frames = [METADATA + bytes(20), METADATA + bytes(20), METADATA + bytes(2000)]

    async def world() -> None:
        connection, _ = await fed(framed(frames), [4096], server)
        await asyncio.sleep(0.1)
        assert connection.is_throttled
        server.now = 10.0
        assert connection.frame_held(10.0, 5.0) >= 2000
        assert connection.frame_held(4.0, 5.0) == 0

    simulate(world, seed=1)
