"""Bodies of many pieces, as group commits and uploads have them, arrive whole on an S3 server, or
not at all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from bench.s3_server import S3Server
from lakehead.storage.errors import ObjectExists, OutcomeUnknown, StoreUnavailable
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.object_store.s3.store import S3Store
from tests.support.http_messages import pass_body, read_head

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


@contextlib.asynccontextmanager
async def cutting(server: S3Server) -> AsyncIterator[str]:
    """Stand before a server and pass half of each body on, then the end of the connection."""
    host, _, port = server.endpoint.rpartition("/")[2].rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection(host, int(port))
        head = await read_head(reader)
        assert head is not None
        upstream[1].write(head.raw)
        await pass_body(head, reader, upstream[1], stop_after=head.length // 2)
        upstream[1].write_eof()
        await upstream[0].read()  # the server is done with it
        for one in (upstream[1], writer):
            one.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1")
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("size", [100 * KIB, 4 * KIB * KIB])
@pytest.mark.parametrize("has_crc", [False, True], ids=["hashed", "crc"])
async def test_a_body_that_a_broken_connection_cut_off_is_not_stored(
    s3_server: S3Server, size: int, has_crc: bool
) -> None:
    plain = S3Store(f"{s3_server.uri}/p")
    async with cutting(s3_server) as endpoint:
        store = S3Store(f"{s3_server.uri}/p?endpoint={endpoint}")
        store.use_crc(is_checked=has_crc)
        with pytest.raises((OutcomeUnknown, StoreUnavailable)):
            await store.create("data/key", [b"x" * size])
        await store.close()
    assert await plain.list("data/") == []
    await plain.create("data/key", [b"x" * size])
    await plain.close()
