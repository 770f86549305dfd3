"""The encrypting store: what it encrypts, what it requests, and clear errors without its key."""

import asyncio
import random
import threading
from collections.abc import Sequence

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.chunks import CHUNK_SIZE
from lakehead.storage.encryption.data_keys import data_keys
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.errors import CorruptObject, KeyUnavailable, NotEncrypted, ObjectExists
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.encrypted import EncryptedStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.object_store.retrying import RetryingStore
from tests.support.encryption_keys import MemoryKeys

BODY = bytes(range(256)) * 1000
KEY = "data/00/1-1-1"


class Counting(MemoryStore):
    """Counts reads."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        super().__init__(objects)
        self.reads: list[str] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads.append("range")
        return await super().get_range(key, start, length)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self.reads.append("suffix")
        return await super().get_suffix(key, length)


def provider() -> MemoryKeys:
    return MemoryKeys(random.Random(5))


async def test_what_a_cluster_writes_is_encrypted_and_what_others_read_is_not() -> None:
    inner, keys = MemoryStore(), provider()
    store = EncryptedStore(inner, keys.data_keys())
    hidden = [
        "data/00/1-1-1",
        "wal/1/0/1",
        "meta/log/1.json",
        "meta/checkpoint/1",
        "meta-before-1/a",
    ]
    shown = ["_delta_log/0.json", "tables/t/part-1.parquet", "check/1", "datax"]
    for key in (*hidden, *shown):
        await store.create(key, [BODY])
        assert (inner.objects[key] == BODY) == (key in shown), key
        assert await store.get(key) == BODY
        assert await store.get_suffix(key, 100) == (BODY[-100:], len(BODY))
    await store.create("wal/1/0/2", [b"s" * 64])
    assert inner.objects["wal/1/0/2"] == b"s" * 64
    assert [meta.size for meta in await store.list("wal/1/0/2")] == [64]


async def test_encryption_is_turned_on_and_off_and_its_key_changes_under_a_reader() -> None:
    inner, keys = MemoryStore(), provider()
    off = EncryptedStore(inner, keys.data_keys(writes=False))
    await off.create("data/00/1-1-1", [BODY])
    on = EncryptedStore(inner, keys.data_keys())
    await on.create("data/00/1-1-2", [BODY])
    keys.rotate()
    await EncryptedStore(inner, keys.data_keys()).create("data/00/1-1-3", [BODY])
    await off.create("data/00/1-1-4", [BODY])
    for store in (on, off, EncryptedStore(inner, keys.data_keys(writes=False))):
        for number in range(1, 5):
            key = f"data/00/1-1-{number}"
            assert await store.get_range(key, 5000, 200) == BODY[5000:5200]
            assert await store.get(key) == BODY
    assert [inner.objects[f"data/00/1-1-{n}"] == BODY for n in range(1, 5)] == [
        *(True, False, False, True)
    ]


async def test_a_name_is_written_once_whatever_its_ciphertext() -> None:
    inner, keys = MemoryStore(), provider()
    store = EncryptedStore(inner, keys.data_keys())
    await store.create(KEY, [BODY])
    with pytest.raises(ObjectExists):
        await store.create(KEY, [BODY])
    await store.delete([KEY])
    await store.create(KEY, [b"another" * 50])
    assert await store.get_range(KEY, 0, 7) == b"another"


async def test_a_reader_requests_the_end_of_an_object_once() -> None:
    """Of an index that was read there, too, nothing more is needed for its ranges."""
    inner, keys = Counting(), provider()
    writer = EncryptedStore(inner, keys.data_keys())
    await writer.create(KEY, [BODY])
    await writer.get_range(KEY, 0, 10)
    assert inner.reads == ["range"], "its writer knows it"
    inner.reads.clear()
    reader = EncryptedStore(inner, keys.data_keys(writes=False))
    async with asyncio.TaskGroup() as group:
        for start in range(0, 5000, 1000):
            group.create_task(reader.get_range(KEY, start, 1000))
    assert sorted(inner.reads) == ["range"] * 5 + ["suffix"]
    inner.reads.clear()
    reader = EncryptedStore(inner, keys.data_keys(writes=False))
    await reader.get_suffix(KEY, 48)
    await reader.get_range(KEY, 0, 1000)
    assert inner.reads == ["suffix", "range"]


async def test_a_store_without_keys_says_so_and_reads_plain_objects_as_ever() -> None:
    inner = Counting()
    await EncryptedStore(inner, provider().data_keys()).create(KEY, [BODY])
    without = EncryptedStore(
        inner, data_keys(EncryptionSettings(), "", clock=SystemClock(), rng=random.Random(1))
    )
    for read in (without.get(KEY), without.get_suffix(KEY, 1000)):
        with pytest.raises(KeyUnavailable, match=r"memory: is encrypted .*'key-0': set encryption"):
            await read
    await without.create("data/00/1-1-2", [BODY])
    inner.reads.clear()
    assert await without.get_range("data/00/1-1-2", 3, 4) == BODY[3:7]
    assert inner.reads == ["range"], "nothing is requested in addition"


@pytest.mark.parametrize("key", [KEY, "wal/1/0/1", "meta/log/1.json", "meta-before-1/a"])
async def test_plain_objects_are_refused_where_encryption_is_required(key: str) -> None:
    inner, keys = MemoryStore(), provider()
    await inner.create(key, [BODY])
    store = EncryptedStore(inner, keys.data_keys(is_required=True))
    target = memoryview(bytearray(4))
    for read in (
        store.get(key),
        store.get_range(key, 0, 4),
        store.get_range_into(key, 0, target),
        store.get_suffix(key, 4),
    ):
        with pytest.raises(
            NotEncrypted, match=rf"{key} is not encrypted, and encryption\.required"
        ):
            await read
    assert bytes(target) == bytes(4)
    assert store.keys.stats.plain_refused == 4
    await store.create(f"{key}-2", [BODY])
    assert await store.get(f"{key}-2") == BODY
    assert await EncryptedStore(inner, keys.data_keys()).get(key) == BODY, "it may be migrated"


async def test_tables_and_seals_stay_plain_where_encryption_is_required() -> None:
    inner = MemoryStore()
    store = EncryptedStore(inner, provider().data_keys(is_required=True))
    for key, body in (("tables/t/part-1.parquet", BODY), ("wal/1/0/2", b"s" * 64)):
        await store.create(key, [body])
        assert inner.objects[key] == body
        assert await store.get(key) == body
        assert await store.get_range(key, 1, 4) == body[1:5]


async def test_a_process_without_a_key_writes_nothing_where_encryption_is_required() -> None:
    inner = MemoryStore()
    settings = EncryptionSettings(is_required=True)
    keys = data_keys(settings, "", clock=SystemClock(), rng=random.Random(1))
    with pytest.raises(NotEncrypted, match=r"needs encryption\.key\.provider"):
        await EncryptedStore(inner, keys).create(KEY, [BODY])
    await inner.create("data/00/1-1-2", [BODY])
    with pytest.raises(NotEncrypted):
        await EncryptedStore(inner, keys).get_range("data/00/1-1-2", 0, 4)
    assert list(inner.objects) == ["data/00/1-1-2"]


async def test_reads_for_clients_do_not_wait_for_a_plain_object_to_be_encrypted() -> None:
    inner = MemoryStore()
    await inner.create(KEY, [BODY])
    store = RetryingStore(
        EncryptedStore(inner, provider().data_keys(is_required=True)), rng=random.Random(1)
    )
    store.is_patient = True
    for read in (store.get_range(KEY, 0, 10), store.get_suffix(KEY, 10)):
        with pytest.raises(NotEncrypted):
            await read


async def test_a_missing_key_is_waited_for_by_a_node_and_refused_by_a_command() -> None:
    keys = provider()
    inner = MemoryStore()
    await EncryptedStore(inner, keys.data_keys()).create(KEY, [BODY])
    wrapping = keys.keys.pop("key-0")
    store = RetryingStore(EncryptedStore(inner, keys.data_keys(writes=False)), rng=random.Random(1))
    with pytest.raises(KeyUnavailable, match=f"cannot decrypt {KEY}: there is no key key-0"):
        await store.get(KEY)
    store.is_patient = True
    reading = asyncio.create_task(store.get(KEY))
    for read in (store.get_range(KEY, 0, 10), store.get_suffix(KEY, 10)):
        with pytest.raises(KeyUnavailable):  # else readers of it keep the memory for cold reads
            await read
    while not store.stats.waiting:  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0)
    keys.keys["key-0"] = wrapping
    assert await reading == BODY


async def test_an_error_names_object_and_chunk() -> None:
    inner, keys = MemoryStore(), provider()
    store = EncryptedStore(inner, keys.data_keys())
    await store.create(KEY, [BODY])
    stored = bytearray(inner.objects[KEY])
    stored[CHUNK_SIZE + 100] ^= 1
    inner.objects[KEY] = bytes(stored)
    with pytest.raises(
        CorruptObject, match=rf"{KEY} is corrupt at byte {CHUNK_SIZE}: chunk 1 of 4 fails"
    ):
        await store.get_range(KEY, CHUNK_SIZE, 10)
    assert await store.get_range(KEY, 0, CHUNK_SIZE) == BODY[:CHUNK_SIZE]


async def test_a_large_object_is_encrypted_and_decrypted_off_the_loop() -> None:
    """The calls of the cipher are seen from the thread that they run in."""
    threads: set[str] = set()

    class Pieces(Sequence[Buffer]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, at: object) -> Buffer:  # type: ignore[override]
            if at != 0:
                raise IndexError
            threads.add(threading.current_thread().name)
            return body

    body = BODY * 8
    store = EncryptedStore(MemoryStore(), provider().data_keys())
    await store.create(KEY, Pieces())
    assert any(name.startswith("asyncio") for name in threads)
    assert await store.get(KEY) == body
