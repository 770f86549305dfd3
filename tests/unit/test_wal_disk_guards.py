"""What a disk carries is told by its signatures, and what the option `format` gives away."""

import random
from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError
from lakehead.storage.wal import disk
from lakehead.storage.wal.block_address import BlockAddress
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import format_device, volume_image

SIZE = 4 * 1024 * 1024
PATH = Path("/dev/lakehead-test0")


def blank() -> MemoryDevice:
    return MemoryDevice(SIZE, rng=random.Random(1))


async def with_wal(cluster: str) -> MemoryDevice:
    device = blank()
    image = volume_image(
        volume_id=b"v" * 16, capacity=SIZE, node_id=0, host_id="h", cluster_id=cluster
    )
    await format_device(device, image)
    return device


@pytest.mark.parametrize("signature", disk._SIGNATURES, ids=lambda s: f"{s.what} at {s.at}")
async def test_every_signature_is_named(signature: disk._Signature) -> None:
    device = blank()
    at = signature.at % SIZE
    device.content[at : at + len(signature.magic)] = signature.magic
    assert await disk.found_on(device) == signature.what
    with pytest.raises(SettingsError, match=f"carries {signature.what}"):
        await disk.may_be_formatted(device, PATH, "yes", "c")
    assert await disk.may_be_formatted(device, PATH, PATH.name, "c")


async def test_an_empty_disk_is_given_away_by_either_value_and_not_without() -> None:
    assert await disk.may_be_formatted(blank(), PATH, "yes", "c")
    assert await disk.may_be_formatted(blank(), PATH, str(PATH), "c")
    assert not await disk.may_be_formatted(blank(), PATH, "", "c")


async def test_a_name_of_another_disk_gives_nothing_away() -> None:
    for name in ("nvme9n9", "/dev/nvme9n9", "vol0123", "YES"):
        with pytest.raises(SettingsError, match="not one of the disk's names"):
            await disk.may_be_formatted(blank(), PATH, name, "c")


@pytest.mark.parametrize("wanted", ["", "yes", PATH.name])
async def test_a_wal_of_this_cluster_is_opened_and_never_formatted(wanted: str) -> None:
    assert not await disk.may_be_formatted(await with_wal("c"), PATH, wanted, "c")
    assert not await disk.may_be_formatted(await with_wal("c"), PATH, wanted, "")


async def test_a_wal_of_another_cluster_goes_by_name_unless_a_process_has_it_open() -> None:
    device = await with_wal("other")
    with pytest.raises(SettingsError, match="the WAL of cluster other, host h"):
        await disk.may_be_formatted(device, PATH, "yes", "c")
    holder = device.attach()
    assert holder.lock(SIZE // 2, 4096)
    with pytest.raises(SettingsError, match="another process has it open"):
        await disk.may_be_formatted(device.attach(), PATH, PATH.name, "c")
    await holder.close()
    assert await disk.may_be_formatted(device, PATH, PATH.name, "c")


@pytest.mark.parametrize(
    "options",
    [
        {"slices": "0"},
        {"slices": "129"},
        {"slices": "two"},
        {"slices": "-1"},
        {"grow": "perhaps"},
        {"reservations": "no"},
        {"preempt": "hard"},
        {"size": "1"},
        {"fromat": "yes"},
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="block:/x"):
        BlockAddress.parse("block:/x", "/x", options)


def test_options_have_safe_defaults() -> None:
    address = BlockAddress.parse("block:/x", "/x", {})
    assert (address.reserves, address.aborts, address.grow, address.format) == (
        True,
        True,
        False,
        "",
    )
