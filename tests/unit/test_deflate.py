"""Records that the broker compresses can be read by whoever reads Kafka's."""

import random

import pytest

from lakehead.storage.format.compression import GZIP, LZ4, SNAPPY, ZSTD, deflate, inflate_into

LEVELS: list[tuple[int, int | None]] = [(codec, None) for codec in (GZIP, SNAPPY, LZ4, ZSTD)]
LEVELS += [(GZIP, -1), (GZIP, 1), (GZIP, 9), (ZSTD, -7), (ZSTD, 22)]
SIZES = (1, 32_768, 65_535, 65_536, 65_537, 200_000)


def inflated(codec: int, data: bytes, size: int) -> bytes:
    target = bytearray(size + 1)
    filled = inflate_into(codec, memoryview(data), memoryview(target))
    return bytes(target[:filled])


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_what_was_compressed_comes_back(codec: int, level: int | None) -> None:
    noise = random.Random(codec)
    for size in SIZES:
        for data in (noise.randbytes(size), bytes(size), b"record " * (size // 7 + 1)):
            assert inflated(codec, deflate(codec, data, level), len(data)) == data
    assert deflate(0, b"plain") == b"plain"
    with pytest.raises(ValueError, match="unknown codec 5"):
        deflate(5, b"x")


def test_a_higher_level_compresses_more() -> None:
    words = [b"word-%d " % number for number in range(500)]
    data = b"".join(random.Random(1).choices(words, k=10_000))
    for codec, low, high in ((GZIP, 1, 9), (ZSTD, 1, 19)):
        assert len(deflate(codec, data, high)) < len(deflate(codec, data, low))


def test_blocks_of_lz4_are_independent_as_kafkas_java_client_demands() -> None:
    frame = deflate(LZ4, bytes(200_000))
    version, independent, checksums = frame[4] >> 6, frame[4] & 0x20, frame[4] & 0x14
    assert (version, independent, checksums) == (1, 0x20, 0)
    blocks, position = 0, 7
    while size := int.from_bytes(frame[position : position + 4], "little") & 0x7FFF_FFFF:
        alone = frame[:7] + frame[position : position + 4 + size] + bytes(4)
        assert set(inflated(LZ4, alone, 65_536)) == {0}
        position += 4 + size
        blocks += 1
    assert blocks == 4
    assert position + 4 == len(frame)
