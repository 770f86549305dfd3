"""The buffers of the block log: memory that a log that is behind does not wait for."""

import ctypes
import resource
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.wal.block import BlockPool

PAGE = 4096
BLOCK = 64 * PAGE
KEEP, KEEP_MAX = 6, 32


def made_pool() -> BlockPool:
    return BlockPool(BLOCK, keep=KEEP, keep_max=KEEP_MAX)


def address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def faults_of_a_backlog(pool: BlockPool, blocks: int) -> int:
    """Take that many blocks and write to all of their pages, then give them back."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    taken = [pool.take(BLOCK) for _ in range(blocks)]
    for buffer in taken:
        buffer[::PAGE] = b"x" * (BLOCK // PAGE)
    after = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for buffer in taken:
        pool.give(buffer)
    return after - before


def test_a_log_that_is_behind_again_has_its_memory() -> None:
    pool = made_pool()
    pages = KEEP_MAX * BLOCK // PAGE
    first = faults_of_a_backlog(pool, KEEP_MAX)
    again = faults_of_a_backlog(pool, KEEP_MAX)
    assert first >= pages
    assert again < pages // 8


def test_memory_of_a_backlog_goes_once_it_was_not_needed_for_a_while() -> None:
    pool = made_pool()
    faults_of_a_backlog(pool, 4 * KEEP_MAX)
    assert len(pool._free) == KEEP_MAX
    for _ in range(10_000):
        pool.give(pool.take(BLOCK))
    assert len(pool._free) == KEEP


@given(steps=st.lists(st.booleans(), max_size=200), rounds=st.integers(1, 20))
def test_no_two_blocks_share_memory_and_few_are_kept(steps: list[bool], rounds: int) -> None:
    pool = made_pool()
    taken: list[memoryview] = []
    for _ in range(rounds):
        for is_take in steps:
            if is_take:
                taken.append(pool.take(BLOCK))
            elif taken:
                pool.give(taken.pop(len(taken) // 2))
            assert len(pool._free) <= KEEP_MAX
        places = sorted(address(one) for one in [*taken, *pool._free])
        assert all(end - start >= BLOCK for start, end in pairwise(places))
        while taken:
            pool.give(taken.pop())
