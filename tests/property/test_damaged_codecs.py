"""Compressed records that are damaged are a ValueError, and nothing else, whatever the codec: other
exceptions would be defects of the task that reads them.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.format.compression import CODEC_NAMES, BufferTooSmall, inflate_into
from lakehead.storage.format.record_batch import HEADER_SIZE, read_header
from lakehead.storage.format.records import inflate, iter_kafka_records
from tests.support.record_batches import CODECS, compress, seal_batch
from tests.support.repetitions import examples

SIZE_MAX = 1 << 20
BODIES = (b"", b"a", b"ab" * 40_000, random.Random(7).randbytes(3000))


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes that were flipped, cut, repeated or taken from elsewhere."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                changed[at:at] = changed[: rng.randint(0, 64)]
            case _:
                changed[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
    return bytes(changed)


def inflated(codec: int, body: bytes) -> None:
    """Inflate a body in each way that there is; ValueError and a full buffer are expected."""
    batch = memoryview(
        seal_batch(body, base_offset=0, last_offset_delta=0, record_count=1, attributes=codec)
    )
    header = read_header(batch)
    for read in (
        lambda: inflate(header, batch[HEADER_SIZE:], SIZE_MAX),
        lambda: list(iter_kafka_records(batch)),
        lambda: inflate_into(codec, batch[HEADER_SIZE:], memoryview(bytearray(100))),
    ):
        try:
            read()
        except (ValueError, BufferTooSmall):
            continue


@pytest.mark.parametrize("codec", CODEC_NAMES)
@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**64 - 1), is_xerial=st.booleans())
def test_damaged_records_are_a_value_error(codec: int, seed: int, is_xerial: bool) -> None:
    rng = random.Random(seed)
    body = compress(CODECS[codec], rng.choice(BODIES), xerial=is_xerial)
    inflated(codec, mutated(body, rng))


@pytest.mark.parametrize("codec", [*CODEC_NAMES, 5, 7])
@settings(max_examples=examples(50), deadline=None)
@given(body=st.binary(max_size=200))
def test_noise_is_a_value_error(codec: int, body: bytes) -> None:
    inflated(codec, body)
