"""Bodies of many pieces, as group commits and uploads have them, arrive whole on an S3 server."""

import asyncio
from collections.abc import Callable

import pytest

from bench.s3_server import S3Server
from lakehead.storage.errors import ObjectExists
from lakehead.storage.object_store import S3Store
from lakehead.storage.object_store.protocol import Buffer

KIB = 1024


@pytest.mark.parametrize("piece_size", [1 * KIB, 16 * KIB], ids=["joined", "as it is"])
async def test_a_body_of_many_pieces_is_stored_whole(s3_server: S3Server, piece_size: int) -> None:
    store = S3Store(f"{s3_server.uri}/p")
    pieces = [bytes([number % 251]) * piece_size for number in range(1000)]
    views = [memoryview(piece) for piece in pieces]
    await store.create("data/key", views)
    assert await store.get("data/key") == b"".join(pieces)
    with pytest.raises(ObjectExists):
        await store.create("data/key", views)
    await store.close()


async def test_copies_of_bodies_on_their_way_are_bounded(s3_server: S3Server) -> None:
    store = S3Store(f"{s3_server.uri}/p")
    body = [b"x" * (3 * KIB * KIB), b"y" * (3 * KIB * KIB)]
    copied = 0

    async def put(number: int) -> None:
        nonlocal copied
        creating = asyncio.ensure_future(store.create(f"data/{number}", body))
        while not creating.done():
            copied = max(copied, store.joined_bytes)
            await asyncio.sleep(0)
        await creating

    await asyncio.gather(*(put(number) for number in range(8)))
    assert 6 * KIB * KIB <= copied <= 32 * KIB * KIB
    assert store.joined_bytes == 0
    for number in range(8):
        assert await store.get(f"data/{number}") == b"".join(body)
    await store.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_body_of_one_piece_is_stored_without_a_copy(
    s3_server: S3Server, kind: Callable[[bytes], Buffer]
) -> None:
    store = S3Store(f"{s3_server.uri}/p")
    body = bytes(range(256)) * KIB
    creating = asyncio.ensure_future(store.create("data/key", [kind(body)]))
    while not creating.done():
        assert store.joined_bytes == 0
        await asyncio.sleep(0)
    await creating
    assert await store.get("data/key") == body
    await store.close()
