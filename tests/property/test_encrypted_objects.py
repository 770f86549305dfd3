"""Encrypted objects: every range is what was written, and nothing that was changed is ever read."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.encryption.chunks import CHUNK_SIZE, TAG_SIZE, TRAILER_SIZE, stored_size
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import CorruptObject, KeyUnavailable
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.encrypted import PLAIN_SIZE_MAX, EncryptedStore
from tests.support.encryption_keys import MemoryKeys

T = TypeVar("T")
KEY = "data/00/1-1-1"
STORED_CHUNK = CHUNK_SIZE + TAG_SIZE
SIZES = st.one_of(
    st.integers(PLAIN_SIZE_MAX + 1, 300),
    st.builds(
        lambda chunks, off: max(PLAIN_SIZE_MAX + 1, chunks * CHUNK_SIZE + off),
        st.integers(1, 5),
        st.integers(-3, 3),
    ),
)
SEEDS = st.integers(0, 1 << 30)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def keys_of(seed: int) -> DataKeys:
    return MemoryKeys(random.Random(seed)).data_keys(seed=seed)


async def written(inner: MemoryStore, keys: DataKeys, size: int, rng: random.Random) -> bytes:
    """Write an object in pieces of random sizes; return its content."""
    body = rng.randbytes(size)
    cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    await EncryptedStore(inner, keys).create(KEY, pieces)
    return body


@given(size=SIZES, seed=SEEDS, from_cache=st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_range_is_what_was_written(size: int, seed: int, from_cache: bool) -> None:
    async def world() -> None:
        rng, inner, keys = random.Random(seed), MemoryStore(), keys_of(seed)
        body = await written(inner, keys, size, rng)
        assert len(inner.objects[KEY]) == stored_size(size)
        assert body[:PLAIN_SIZE_MAX] not in inner.objects[KEY]
        store = EncryptedStore(inner, keys)
        assert await store.get(KEY) == body
        for _ in range(12):
            if not from_cache:
                store = EncryptedStore(inner, keys)
            start = rng.randrange(size)
            length = rng.choice((1, rng.randrange(size - start + 1), size - start))
            assert await store.get_range(KEY, start, length) == body[start : start + length]
            target = bytearray(length)
            await store.get_range_into(KEY, start, memoryview(target))
            assert target == body[start : start + length]
            suffix = rng.choice((1, 48, length, CHUNK_SIZE, size + 7))
            assert await store.get_suffix(KEY, suffix) == (body[max(0, size - suffix) :], size)
        for start, length in ((0, size + 1), (size, 1), (size - 1, 2)):
            with pytest.raises(CorruptObject, match="wanted"):
                await store.get_range(KEY, start, length)

    run(world())


@given(size=SIZES, seed=SEEDS, at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_changed_byte_is_an_error_and_harms_no_other_chunk(
    size: int, seed: int, at: float, bit: int
) -> None:
    """Of chunks, tags, and the trailer up to its magic: without that the object is not encrypted,
    and its reader finds no footer.
    """

    async def world() -> None:
        inner, keys = MemoryStore(), keys_of(seed)
        body = await written(inner, keys, size, random.Random(seed))
        stored = bytearray(inner.objects[KEY])
        place = int(at * (len(stored) - 8))
        stored[place] ^= 1 << bit
        inner.objects[KEY] = bytes(stored)
        with pytest.raises((CorruptObject, KeyUnavailable), match=KEY):
            await EncryptedStore(inner, keys).get(KEY)
        damaged = place // STORED_CHUNK
        for number in range(-(-size // CHUNK_SIZE)):
            start = number * CHUNK_SIZE
            length = min(CHUNK_SIZE, size - start)
            store = EncryptedStore(inner, keys)
            if place < len(stored) - TRAILER_SIZE and number != damaged:
                assert await store.get_range(KEY, start, length) == body[start : start + length]
            else:
                with pytest.raises((CorruptObject, KeyUnavailable)):
                    await store.get_range(KEY, start, length)

    run(world())


async def refuses(inner: MemoryStore, keys: DataKeys, body: bytes, key: str = KEY) -> None:
    """Check that no way to read the object gives its reader anything."""
    size = len(body)
    with pytest.raises(CorruptObject):
        await EncryptedStore(inner, keys).get(key)
    with pytest.raises(CorruptObject):
        store = EncryptedStore(inner, keys)
        for start in range(0, size, CHUNK_SIZE):
            await store.get_range(key, start, min(CHUNK_SIZE, size - start))
    with pytest.raises(CorruptObject):
        await EncryptedStore(inner, keys).get_suffix(key, size)


@given(size=SIZES, seed=SEEDS, cut=st.integers(1, 2 * STORED_CHUNK))
@settings(max_examples=100, deadline=None)
def test_a_shorter_object_with_its_trailer_is_an_error(size: int, seed: int, cut: int) -> None:
    async def world() -> None:
        inner, keys = MemoryStore(), keys_of(seed)
        body = await written(inner, keys, size, random.Random(seed))
        stored = inner.objects[KEY]
        chunks, trailer = stored[:-TRAILER_SIZE], stored[-TRAILER_SIZE:]
        for left in (chunks[:-cut], chunks[cut:], chunks[:-STORED_CHUNK], chunks + chunks[:cut]):
            if left != chunks:
                inner.objects[KEY] = left + trailer
                await refuses(inner, keys, body)

    run(world())


@given(seed=SEEDS, chunks=st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_chunks_in_another_order_or_of_another_object_are_errors(seed: int, chunks: int) -> None:
    async def world() -> None:
        rng, keys = random.Random(seed), keys_of(seed)
        inner, other = MemoryStore(), MemoryStore()
        body = await written(inner, keys, chunks * CHUNK_SIZE, rng)
        await written(other, keys, chunks * CHUNK_SIZE, rng)
        stored, foreign = inner.objects[KEY], other.objects[KEY]
        parts = [stored[at : at + STORED_CHUNK] for at in range(0, len(stored), STORED_CHUNK)]
        first, second = rng.sample(range(chunks), 2)
        swapped = list(parts)
        swapped[first], swapped[second] = parts[second], parts[first]
        replaced = list(parts)
        at = first * STORED_CHUNK
        replaced[first] = foreign[at : at + STORED_CHUNK]
        for changed in (swapped, replaced, [*parts[:-1], foreign[-TRAILER_SIZE:]]):
            inner.objects[KEY] = b"".join(changed)
            await refuses(inner, keys, body)

    run(world())


@given(size=SIZES, seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_an_object_under_another_name_is_an_error(size: int, seed: int) -> None:
    async def world() -> None:
        inner, keys = MemoryStore(), keys_of(seed)
        body = await written(inner, keys, size, random.Random(seed))
        moved = "data/00/1-1-2"
        inner.objects[moved] = inner.objects[KEY]
        await refuses(inner, keys, body, moved)
        assert await EncryptedStore(inner, keys).get(KEY) == body

    run(world())
