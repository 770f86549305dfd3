import random
from dataclasses import replace

import pytest
from crc32c import crc32c

from lakehead.storage.errors import UnsupportedFormat
from lakehead.storage.wal.block_format import (
    BODY,
    EPOCH_RANGES_MAX,
    OVERHEAD,
    RECORD,
    SECTOR,
    EpochRange,
    SliceEntry,
    SliceHeader,
    VolumeHeader,
    encode_padding,
    newest,
    read_record_header,
    stamp,
)

VOLUME = VolumeHeader(
    generation=3,
    volume_id=bytes(range(16)),
    capacity=1 << 30,
    host_id="host-ä",
    cluster_id="c" * 255,
    slices=(
        SliceEntry(node_id=0, start=65536, length=1 << 29),
        SliceEntry(node_id=7, start=65536 + (1 << 29), length=4096),
    ),
)
SLICE = SliceHeader(
    generation=9,
    volume_id=bytes(range(16)),
    node_id=7,
    node_epoch=12,
    is_clean=True,
    trimmed=100,
    released=2**40,
    window_length=1 << 24,
    scan_length=1 << 27,
    segments=(EpochRange(epoch=3, start=0, end=200), EpochRange(epoch=12, start=4096, end=None)),
)


def test_sizes_are_those_of_the_format() -> None:
    assert (RECORD.size, BODY.size, OVERHEAD) == (48, 33, 81)
    assert len(VOLUME.encode()) == len(SLICE.encode()) == SECTOR


def test_headers_come_back_as_they_were() -> None:
    assert VolumeHeader.decode(memoryview(VOLUME.encode())) == VOLUME
    assert SliceHeader.decode(memoryview(SLICE.encode())) == SLICE
    full = replace(SLICE, segments=SLICE.segments[:1] * EPOCH_RANGES_MAX)
    assert full.fits
    assert SliceHeader.decode(memoryview(full.encode())) == full
    assert not replace(SLICE, segments=SLICE.segments[:1] * (EPOCH_RANGES_MAX + 1)).fits


def test_a_slice_header_with_keys_comes_back_as_it_was_and_has_a_version_of_its_own() -> None:
    """An older release would take encrypted records for a hole in the log."""
    plain, keyed = SLICE.segments[0], replace(SLICE.segments[1], key=bytes(range(250)))
    mixed = replace(SLICE, segments=(plain, keyed))
    slot = mixed.encode()
    assert slot[8:10] == b"\0\2"
    assert SliceHeader.decode(memoryview(slot)) == mixed
    full = replace(mixed, segments=(keyed,) * 14)
    assert full.fits
    assert SliceHeader.decode(memoryview(full.encode())) == full
    assert not replace(full, segments=(keyed,) * 15).fits


def test_golden_bytes_of_a_slice_header() -> None:
    slot = SLICE.encode()
    assert slot[:32] == bytes.fromhex(
        "4c4b4844534c4943 0001 0001 00000007 0000000000000009 0001020304050607"
    )
    assert slot[40:84] == bytes.fromhex(
        "000000000000000c 0000000000000064 0000010000000000 0000000001000000"
        "0000000008000000 00000002"
    )
    assert slot[84:132] == bytes.fromhex(
        "0000000000000003 0000000000000000 00000000000000c8"
        "000000000000000c 0000000000001000 ffffffffffffffff"
    )
    assert slot[132:4092] == bytes(4092 - 132)
    assert int.from_bytes(slot[4092:], "big") == crc32c(slot[:4092])


def test_any_flipped_bit_makes_a_header_slot_invalid() -> None:
    rng = random.Random(5)
    for header in (VOLUME, SLICE):
        slot = bytearray(header.encode())
        for bit in [*range(1200), *rng.sample(range(SECTOR * 8), 300)]:
            slot[bit // 8] ^= 1 << bit % 8
            assert type(header).decode(memoryview(slot)) is None
            slot[bit // 8] ^= 1 << bit % 8


def test_the_newest_valid_slot_counts() -> None:
    old, new = SLICE.encode(), replace(SLICE, generation=10).encode()
    torn = new[:512] + old[512:4000] + bytes(96)
    for slots, generation in ((old + new, 10), (new + old, 10), (old + torn, 9), (torn + old, 9)):
        found = newest(memoryview(slots), SliceHeader.decode)
        assert found is not None
        assert found.generation == generation
    assert newest(memoryview(torn + bytes(SECTOR)), SliceHeader.decode) is None


@pytest.mark.parametrize("header", [VOLUME, SLICE])
def test_a_newer_format_is_refused_in_one_line(header: VolumeHeader | SliceHeader) -> None:
    slot = bytearray(header.encode())
    slot[8:10] = (3).to_bytes(2, "big")
    slot[4092:] = crc32c(slot[:4092]).to_bytes(4, "big")
    with pytest.raises(UnsupportedFormat, match=r"version 3.*upgrade") as caught:
        type(header).decode(memoryview(slot))
    assert "\n" not in str(caught.value)


def test_golden_bytes_of_padding_and_its_flipped_bits() -> None:
    view = memoryview(bytearray(encode_padding(lap=2, gap=0, position=8192, end=12288, epoch=5)))
    stamp(view, 9, 8000, 77)
    assert view[:40] == bytes.fromhex(
        "4c4b5752 01 02 0009 00000002 00000fd00000000000002000 0000000000000005 0000000000001f40"
    )
    header = read_record_header(view, 77)
    assert header is not None
    assert (header.gap, header.released, header.body_length) == (9, 8000, 4048)
    assert read_record_header(view, 78) is None
    assert read_record_header(view[:47], 77) is None
    for bit in range(RECORD.size * 8):
        view[bit // 8] ^= 1 << bit % 8
        assert read_record_header(view, 77) is None
        view[bit // 8] ^= 1 << bit % 8


def test_a_record_of_a_newer_version_is_refused() -> None:
    view = memoryview(bytearray(encode_padding(lap=0, gap=0, position=0, end=4096, epoch=5)))
    view[4] = 3
    stamp(view, 0, 0, 1)
    with pytest.raises(UnsupportedFormat, match="version 3"):
        read_record_header(view, 1)
