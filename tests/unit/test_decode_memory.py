"""Memory that is used again: never while anybody can still see it."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.decode import memory
from lakehead.lake.decode.memory import KEPT_BYTES_MAX, SIZE_MAX, SIZE_MIN, empty, zeros
from tests.support.repetitions import examples

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    """What others have left would fill the room there is for what these leave."""
    gc.collect()
    memory._free._pages.clear()
    memory._free.size_bytes = 0


def address(array: object) -> int:
    return int(np.asarray(array).ctypes.data)


def test_what_was_left_is_handed_out_again() -> None:
    first = empty(3 * MIB, np.uint8)
    place = address(first)
    del first
    again = empty(MIB // 2, np.int64)  # of the same power of two
    assert address(again) == place
    assert len(again) == MIB // 2


@pytest.mark.parametrize("size", [0, 1, SIZE_MIN - 1, SIZE_MIN, SIZE_MIN + 1, SIZE_MAX])
def test_an_array_has_the_length_that_was_asked_for(size: int) -> None:
    assert len(empty(size, np.uint8)) == size
    assert not zeros(size, np.uint8)[-1:].any()


def test_larger_pieces_are_not_kept() -> None:
    before = memory._free.size_bytes
    del [empty(SIZE_MAX + 1, np.uint8)][0]
    assert memory._free.size_bytes == before


def test_what_is_kept_is_bounded() -> None:
    held = [empty(SIZE_MAX, np.uint8) for _ in range(2 * KEPT_BYTES_MAX // SIZE_MAX)]
    held.clear()
    assert 0 < memory._free.size_bytes <= KEPT_BYTES_MAX
    assert len(empty(SIZE_MAX, np.uint8)) == SIZE_MAX


@given(
    st.lists(
        st.tuples(
            st.integers(0, 255), st.sampled_from(("array", "slice", "arrow", "view", "drop"))
        ),
        max_size=30,
    )
)
@settings(deadline=None, max_examples=examples(50))
def test_nothing_that_is_still_seen_is_written_over(steps: list[tuple[int, str]]) -> None:
    held: list[tuple[object, int]] = []
    for value, how in steps:
        array = empty(SIZE_MIN, np.uint8)
        array.fill(value)
        if how == "array":
            held.append((array, value))
        elif how == "slice":
            held.append((array[10:20].view(np.int16), value))
        elif how == "arrow":
            buffers = [None, pa.py_buffer(array[64:])]
            held.append((pa.Array.from_buffers(pa.uint8(), 100, buffers).slice(1), value))
        elif how == "view":
            held.append((array.data[5:], value))
        else:
            held = held[1:]
        del array
        for seen, expected in held:
            assert set(np.asarray(seen).tobytes()[:16]) == {expected}


def test_threads_never_share_a_piece() -> None:
    def work(value: int) -> bool:
        for _ in range(200):
            array = empty(SIZE_MIN, np.uint8)
            array[::4096] = value
            if not (array[::4096] == value).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_forked_child_has_memory_of_its_own() -> None:
    shared = empty(SIZE_MIN, np.uint8)
    shared.fill(1)
    kept = empty(SIZE_MIN, np.uint8)
    kept.fill(1)
    place = address(kept)
    del kept
    child = os.fork()
    if not child:
        shared.fill(2)
        empty(SIZE_MIN, np.uint8).fill(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (shared == 1).all()
    again = empty(SIZE_MIN, np.uint8)
    assert address(again) == place
    assert (again == 1).all()


def test_a_cycle_gives_its_piece_back_to_the_collector() -> None:
    gc.collect()
    before = memory._free.size_bytes
    cycle: list[object] = [empty(SIZE_MIN, np.uint8)]
    cycle.append(cycle)
    taken = memory._free.size_bytes
    del cycle
    gc.collect()
    assert memory._free.size_bytes == max(before, taken + SIZE_MIN)
