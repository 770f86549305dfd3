"""Large objects go past the page cache, whatever their pieces are and wherever these lie."""

import asyncio
import mmap
import random
import tempfile
from collections.abc import Sequence

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


SIZES = st.sampled_from(
    (0, 1, SECTOR - 1, SECTOR, SECTOR + 1, MIB, MIB + 77, 4 * MIB, 4 * MIB + SECTOR, 9 * MIB + 5)
)


@given(st.lists(st.tuples(SIZES, st.sampled_from((0, 0, 1, SECTOR)), st.booleans()), max_size=5))
@settings(max_examples=30, deadline=None)
def test_an_object_is_its_pieces(parts: Sequence[tuple[int, int, bool]]) -> None:
    pieces = [piece(size, shift, is_readonly=readonly) for size, shift, readonly in parts]

    async def stored(folder: str) -> bytes:
        store = FileStore(folder)
        await store.create("a/b", pieces)
        body = await store.get("a/b")
        await store.close()
        return body

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(stored(folder)) == b"".join(pieces)
