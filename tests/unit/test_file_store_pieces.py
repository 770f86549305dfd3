"""Large objects go past the page cache, whatever their pieces are and wherever these lie."""

import asyncio
import mmap
import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.object_store import FileStore

SECTOR = 4096
MIB = 1 << 20


def piece(size: int, shift: int, *, is_readonly: bool) -> bytes | memoryview:
    """Random bytes that begin `shift` bytes after a boundary."""
    body = random.Random(size * 31 + shift).randbytes(size)
    if is_readonly:
        return body
    pages = memoryview(mmap.mmap(-1, shift + max(size, 1)))
    pages[shift : shift + size] = body
    return pages[shift : shift + size]


def read_back(pieces: Sequence[bytes | memoryview]) -> bytes:
    """Return the body of an object that was made of the pieces."""

    async def stored(folder: str) -> bytes:
        store = FileStore(folder)
        await store.create("a/b", pieces)
        body = await store.get("a/b")
        await store.close()
        return body

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(stored(folder))


SIZES = st.sampled_from(
    (0, 1, SECTOR - 1, SECTOR, SECTOR + 1, MIB // 2 + SECTOR, MIB, MIB + 77, 4 * MIB, 9 * MIB + 5)
)


@given(st.lists(st.tuples(SIZES, st.sampled_from((0, 0, 1, SECTOR)), st.booleans()), max_size=5))
@settings(max_examples=30, deadline=None)
def test_an_object_is_its_pieces(parts: Sequence[tuple[int, int, bool]]) -> None:
    pieces = [piece(size, shift, is_readonly=readonly) for size, shift, readonly in parts]

    assert read_back(pieces) == b"".join(pieces)


async def test_a_write_of_the_log_waits_for_no_more_than_a_little_of_a_large_object(
    tmp_path: Path,
) -> None:
    def writes() -> int:
        found = re.search(r"syscw: (\d+)", Path("/proc/self/io").read_text())
        assert found is not None
        return int(found[1])

    store = FileStore(tmp_path)
    for body in (random.Random(1).randbytes(16 * MIB), memoryview(mmap.mmap(-1, 16 * MIB))):
        before = writes()
        await store.create(f"a/{type(body).__name__}", [body])
        assert writes() - before >= 16, "a write of more than 1 MiB"
    await store.close()


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 9000)), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_an_object_of_thousands_of_small_pieces_is_all_of_them(
    runs: Sequence[tuple[int, int]], begins_aligned: bool
) -> None:
    pieces: list[bytes | memoryview] = []
    if begins_aligned:
        pieces.append(piece(MIB + SECTOR, 0, is_readonly=False))
    for count, size in runs:
        pieces += [piece(size + number % 3, 0, is_readonly=True) for number in range(count)]
    pieces.append(piece(MIB, 1, is_readonly=False))
    assert read_back(pieces) == b"".join(pieces)
