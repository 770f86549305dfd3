"""The log of a node as another one reads it while it grows: never beyond what is durable."""

import pytest

from lakehead.storage.errors import CorruptObject
from lakehead.storage.object_store import MemoryStore, ObjectStore
from lakehead.storage.wal import ObjectWal
from lakehead.storage.wal.object.names import wal_key
from lakehead.storage.wal.object.tail import ObjectWalTail
from lakehead.storage.wal.protocol import WalFloor
from tests.support.object_wal_tools import CLUSTER, HeldStore, make_wal, seal, turns
from tests.support.wal_tools import Listener

STREAM, OTHER = 1, 2
WANTED = frozenset({STREAM})


def tail_of(store: ObjectStore, *, epoch: int = 0, incarnation: str = "a") -> ObjectWalTail:
    return ObjectWalTail(
        store, cluster_id=CLUSTER, node_id=0, epoch=epoch, incarnation=incarnation.ljust(16, ".")
    )


async def begun(store: MemoryStore | HeldStore) -> ObjectWal:
    wal = make_wal(store)
    await wal.seal(WalFloor(0, 0), before=0)
    await wal.start(epoch=0, listener=Listener())
    return wal


async def write(wal: ObjectWal, offset: int, stream_id: int = STREAM) -> None:
    """Write a group of one record."""
    wal.append(stream_id, 0, offset, 1, b"r%d" % offset)
    await turns()


async def read(tail: ObjectWalTail) -> list[tuple[int, bytes]] | None:
    found = await tail.next(WANTED)
    return None if found is None else [(one.base_offset, bytes(one.payload)) for one in found]


async def test_what_is_written_is_read_in_order_and_once() -> None:
    store = MemoryStore()
    wal, tail = await begun(store), tail_of(store)
    assert await read(tail) is None
    for offset in range(3):
        await write(wal, offset)
    assert [await read(tail) for _ in range(4)] == [[(0, b"r0")], [(1, b"r1")], [(2, b"r2")], None]
    await write(wal, 3)
    assert await read(tail) == [(3, b"r3")]


async def test_only_the_wanted_streams_are_read() -> None:
    store = MemoryStore()
    wal, tail = await begun(store), tail_of(store)
    await write(wal, 0, OTHER)
    await write(wal, 0)
    assert await read(tail) == []
    assert await read(tail) == [(0, b"r0")]


async def test_nothing_is_read_beyond_a_put_that_is_on_its_way() -> None:
    """A node that recovers the log now ends it there, and what lies above never counts."""
    store = HeldStore(MemoryStore())
    wal, tail = await begun(store), tail_of(store)
    for offset in range(3):
        await write(wal, offset)
    for number in (1, 2):
        store.settle(number)
    await turns()
    assert await read(tail) is None
    store.settle(0)
    await turns()
    assert [await read(tail) for _ in range(3)] == [[(0, b"r0")], [(1, b"r1")], [(2, b"r2")]]


async def test_a_sealed_log_ends() -> None:
    store = MemoryStore()
    wal, tail = await begun(store), tail_of(store)
    await write(wal, 0)
    await seal(store)
    assert await read(tail) == [(0, b"r0")]
    assert await read(tail) is None
    assert await read(tail) is None


async def test_a_log_of_another_writer_is_not_read() -> None:
    store = MemoryStore()
    await write(await begun(store), 0)
    with pytest.raises(CorruptObject):
        await read(tail_of(store, incarnation="b"))


async def test_a_damaged_object_is_not_read() -> None:
    store = MemoryStore()
    await write(await begun(store), 0)
    key = wal_key(0, 0, 0)
    body = bytearray(store.objects[key])
    body[body.index(b"r0")] ^= 1
    store.objects[key] = bytes(body)
    with pytest.raises(CorruptObject):
        await read(tail_of(store))


async def test_what_lies_below_the_floor_is_skipped_and_found_again_after_a_rewind() -> None:
    store = MemoryStore()
    wal, tail = await begun(store), tail_of(store)
    for offset in range(3):
        await write(wal, offset)
    tail.skip_to(WalFloor(0, 2))
    assert await read(tail) == [(2, b"r2")]
    tail.skip_to(WalFloor(0, 1))  # an older view of the metadata
    assert await read(tail) is None
    tail.rewind_to(WalFloor(0, 1))
    assert await read(tail) == [(1, b"r1")]
    tail.rewind_to(WalFloor(-1, 9))  # the floor of an earlier epoch
    assert await read(tail) == [(0, b"r0")]
