"""Responses that a client takes slowly: all bytes, in order, and the memory is given back."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.network import unsent
from lakehead.broker.network.memory_shares import Holding
from lakehead.broker.network.request_memory import Piece, RequestMemory
from lakehead.broker.network.unsent import EXACT_S, UnsentResponses

SOURCES = [bytes([n]) * (1 << 20) for n in range(4)]


class SlowSocket:
    """A transport without a buffer limit: it takes what the test lets it take."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.held = bytearray()
        self.responses: UnsentResponses | None = None

    def write(self, piece: Piece) -> None:
        self.writelines([piece])

    def writelines(self, pieces: Sequence[Piece]) -> None:
        self.held += b"".join(pieces)
        assert self.responses is not None
        if self.held:
            self.responses.pause()

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def take(self, size: int) -> None:
        """The client takes up to `size` bytes."""
        self.taken += self.held[:size]
        del self.held[:size]
        if not self.held:
            assert self.responses is not None
            self.responses.resume()


PIECES = st.builds(
    lambda source, begin, size: memoryview(SOURCES[source])[begin : begin + size],
    st.integers(0, 3),
    st.integers(0, 1 << 16),
    st.sampled_from([0, 1, 100, 5000, 300_000]),
)
STEPS = st.one_of(
    st.lists(PIECES, min_size=1, max_size=30).map(lambda pieces: ("send", pieces)),
    st.sampled_from([1, 1000, 70_000, 1 << 22]).map(lambda size: ("take", size)),
    st.sampled_from([0.1, 1.0, 3.0]).map(lambda seconds: ("wait", seconds)),
)


@given(st.lists(STEPS, max_size=40), st.sampled_from([50_000, 4 << 20]), st.booleans())
def test_a_slow_client_gets_every_byte_and_the_memory_is_given_back(
    steps: list[tuple[str, object]], write_size: int, is_dropped: bool
) -> None:
    memory, socket = RequestMemory(1 << 30), SlowSocket()
    before, unsent.WRITE_SIZE = unsent.WRITE_SIZE, write_size
    try:
        holding = Holding(memory.response_shares, lambda: ("ann", "10.0.0.1"))
        responses = UnsentResponses(memory, socket, holding, 0.0)  # type: ignore[arg-type]
        socket.responses = responses
        sent, now = bytearray(), 0.0
        for step, value in steps:
            if step == "send":
                assert isinstance(value, list)
                sent += b"".join(value)
                responses.send(value)
            elif step == "take":
                assert isinstance(value, int)
                socket.take(value)
            else:
                assert isinstance(value, float)
                now += value
                deaf_s = responses.deaf_s(now)
                if deaf_s >= EXACT_S and responses.size:
                    # Each source is charged once, however many pieces of it wait.
                    assert memory.responses.used <= len(SOURCES) * (1 << 20)
            assert bytes(sent).startswith(bytes(socket.taken))
            assert responses.size == len(sent) - len(socket.taken)
        if is_dropped:
            responses.drop()
        else:
            while socket.held:
                socket.take(1 << 30)
            assert socket.taken == sent
        assert memory.responses.used == 0
        assert holding.share.held == 0
    finally:
        unsent.WRITE_SIZE = before
