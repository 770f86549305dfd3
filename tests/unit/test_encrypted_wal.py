"""An encrypted block WAL: what lies on the device, which keys open it, and what others say."""

import random
from dataclasses import replace

import pytest

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import (
    KeyUnavailable,
    NotEncrypted,
    StorageError,
    StoreUnavailable,
    WalCorrupted,
)
from lakehead.storage.wal.block_format import OVERHEAD, SECTOR, SLICES_START, SliceHeader
from lakehead.storage.wal.memory_device import MemoryDevice
from tests.support.encryption_keys import MemoryKeys
from tests.support.wal_tools import (
    RING_START,
    append_released,
    new_device,
    open_small,
    recovered,
    started,
)

MARK = b"a-card-number-" * 20


async def written(device: MemoryDevice, data_keys: DataKeys | None, epoch: int = 1) -> None:
    """One life that writes one record and crashes."""
    wal = await open_small(device, data_keys=data_keys)
    listener = await started(wal, epoch)
    await append_released(wal, listener, MARK)


async def payloads(device: MemoryDevice, data_keys: DataKeys | None) -> list[bytes]:
    wal = await open_small(device, data_keys=data_keys)
    return [bytes(record.payload) for record in await recovered(wal)]


async def test_no_payload_and_no_key_is_on_the_device_and_another_process_reads_it() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    await written(device, keys.data_keys())
    device = device.crash()
    assert MARK[:14] not in bytes(device.content)
    assert keys.keys[keys.current] not in bytes(device.content)
    assert await payloads(device, keys.data_keys(writes=False)) == [MARK]


async def test_epochs_may_be_plain_encrypted_and_under_other_keys() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    lives = [None, keys.data_keys(), keys.data_keys(writes=False)]
    for epoch, data_keys in enumerate(lives, 1):
        await written(device, data_keys or keys.data_keys(writes=False), epoch)
        device = device.crash()
        keys.rotate()
    await written(device, keys.data_keys(), 4)
    assert await payloads(device.crash(), keys.data_keys()) == [MARK] * 4


async def test_plain_records_are_refused_where_encryption_is_required_and_stay() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    await written(device, None)
    device = device.crash()
    with pytest.raises(
        NotEncrypted, match=r"record at \d+ is not encrypted.*start the node without"
    ):
        await payloads(device, keys.data_keys(is_required=True))
    assert await payloads(device, keys.data_keys()) == [MARK], "the advice helps"


async def test_a_log_that_was_plain_and_is_uploaded_is_taken_where_encryption_is_required() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    await append_released(wal, listener, MARK)
    await wal.trim(wal.released_position)
    device = device.crash()
    required = keys.data_keys(is_required=True)
    assert await payloads(device, required) == []
    device = device.crash()
    await written(device, required, 2)
    assert await payloads(device.crash(), required) == [MARK]


async def test_a_log_whose_key_is_missing_is_refused_and_stays_as_it_is() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    await written(device, keys.data_keys())
    device = device.crash()
    with pytest.raises(KeyUnavailable, match=r"is encrypted: set encryption\.key\.provider"):
        await payloads(device, None)
    wrapping, device = keys.keys.pop(keys.current), device.crash()
    with pytest.raises(KeyUnavailable, match=r"cannot decrypt .* no key key-0"):
        await payloads(device, keys.data_keys())
    keys.keys[keys.current], device = wrapping, device.crash()
    assert await payloads(device, keys.data_keys()) == [MARK]


async def test_a_stored_key_that_is_no_key_is_damage() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    await written(device, keys.data_keys())
    device = device.crash()
    for slot in (SLICES_START, SLICES_START + SECTOR):
        header = SliceHeader.decode(memoryview(device.content)[slot : slot + SECTOR])
        assert header is not None
        (segment,) = header.segments
        changed = replace(header, segments=(replace(segment, key=b"short"),))
        device.content[slot : slot + SECTOR] = changed.encode()
    with pytest.raises(WalCorrupted, match=r"the key of epoch 1 cannot be read"):
        await payloads(device, keys.data_keys())


async def test_without_a_new_key_no_epoch_begins() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device()
    keys.is_away = True
    wal = await open_small(device, data_keys=keys.data_keys())
    with pytest.raises(StoreUnavailable):
        await started(wal, 1)
    keys.is_away = False
    await written(device.crash(), keys.data_keys())


async def test_a_record_with_right_checksums_and_another_content_is_damage() -> None:
    """Checksums are for accidents. The record of another log, moved here, passes them."""
    keys, device = MemoryKeys(random.Random(11)), await new_device(seed=7)
    await written(device, keys.data_keys(seed=1))
    device = device.crash()
    other = await new_device(seed=7)  # the same volume id, place and epoch
    await written(other, keys.data_keys(seed=2))
    end = RING_START + OVERHEAD + len(MARK) + 16
    assert (
        device.content[RING_START : RING_START + 40] == other.content[RING_START : RING_START + 40]
    )
    device.content[RING_START:end] = other.crash().content[RING_START:end]
    with pytest.raises(WalCorrupted, match=r"WAL position 0 .*fails its authentication"):
        await payloads(device, keys.data_keys())


async def test_a_plain_record_in_an_encrypted_epoch_is_damage() -> None:
    """Even if encryption is not required: a node that encrypts writes no plain records."""
    keys, device = MemoryKeys(random.Random(11)), await new_device(seed=7)
    await written(device, keys.data_keys())
    device = device.crash()
    other = await new_device(seed=7)  # the same volume id, place and epoch
    await written(other, None)
    end = RING_START + OVERHEAD + len(MARK)
    device.content[RING_START:end] = other.crash().content[RING_START:end]
    with pytest.raises(WalCorrupted, match=r"WAL position 0 .*is plain in an encrypted epoch"):
        await payloads(device, keys.data_keys())


async def test_starts_whose_keys_would_overflow_the_header_are_refused() -> None:
    keys, device = MemoryKeys(random.Random(11)), await new_device(ring_length=4 * 1024 * 1024)
    with pytest.raises(StorageError, match=r"data of \d+ starts of node 0") as refused:
        for epoch in range(1, 100):
            await written(device, keys.data_keys(seed=epoch), epoch)
            device = device.crash()
    count = int(str(refused.value).split("data of ")[1].split()[0])
    assert 20 < count < 60
    assert await payloads(device.crash(), keys.data_keys()) == [MARK] * count
