"""The inflater with a context of its own gives what the one without gives, batch after batch."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.format.compression import (
    CODEC_NAMES,
    ZSTD,
    BufferTooSmall,
    deflate,
    inflate_into,
)
from lakehead.storage.format.inflater import Inflater

PLAIN = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda seed, size, times: random.Random(seed).randbytes(size) * times,
        st.integers(0, 99),
        st.integers(1, 2000),
        st.integers(1, 60),
    ),
)
INFLATER = Inflater()
"""One for all examples: nothing of a batch before is left in its context."""


def inflated(codec: int, body: bytes, room: int) -> bytes:
    target = memoryview(bytearray(room))
    return bytes(target[: INFLATER.inflate_into(codec, memoryview(body), target)])


@given(st.lists(st.tuples(st.sampled_from(sorted(CODEC_NAMES)), PLAIN), max_size=8))
@settings(deadline=None)
def test_batches_of_any_codecs_one_after_another(batches: list[tuple[int, bytes]]) -> None:
    for codec, plain in batches:
        body = deflate(codec, plain)
        assert inflated(codec, body, len(plain) + 1000) == plain


@given(PLAIN, st.integers(0, 5))
@settings(deadline=None)
def test_a_buffer_of_just_the_size_is_enough_and_a_smaller_one_is_not(
    plain: bytes, less: int
) -> None:
    body = deflate(ZSTD, plain)
    assert inflated(ZSTD, body, len(plain)) == plain
    if 0 < less <= len(plain):
        with pytest.raises(BufferTooSmall):
            inflated(ZSTD, body, len(plain) - less)
    assert inflated(ZSTD, body, len(plain) + 1) == plain


@given(st.lists(PLAIN, min_size=2, max_size=4))
@settings(deadline=None)
def test_frames_one_behind_another_are_one_body(parts: list[bytes]) -> None:
    """As a client may flush its compressor between records."""
    body = b"".join(deflate(ZSTD, part) for part in parts)
    plain = b"".join(parts)
    target = memoryview(bytearray(len(plain) + 1))
    assert inflated(ZSTD, body, len(plain) + 1) == plain
    assert inflate_into(ZSTD, memoryview(body), target) == len(plain)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_that_are_not_zstd_are_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="not zstd"):
        inflated(ZSTD, b"none" + body, 1000)
    good = deflate(ZSTD, b"good" * 100)
    assert inflated(ZSTD, good, 1000) == b"good" * 100


def test_a_wrong_byte_does_not_spoil_the_next_batch() -> None:
    plain = random.Random(5).randbytes(4000) * 4
    body = deflate(ZSTD, plain)
    for place in range(0, len(body), 97):
        damaged = bytearray(body)
        damaged[place] ^= 0x55
        try:
            found = inflated(ZSTD, bytes(damaged), 20_000)
        except (ValueError, BufferTooSmall):
            found = b""
        assert len(found) <= 20_000
        assert inflated(ZSTD, body, 20_000) == plain
