"""Bytes that resemble valid ones: small numbers, lengths at their limits, parts of known inputs."""

import random
from collections.abc import Sequence

SIZE_MAX = 4096
_BYTES = bytes((0, 0, 0, 1, 1, 2, 2, 3, 4, 8, 16, 0x7F, 0x80, 0xFE, 0xFF))
_LIMITS = (
    *(b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1", b"\0\1"),
    *(b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x08"),
    *(b"\x7f\xff", b"\xff\xfe", b"\x80\0", b"\xc0\x80", b"\xed\xa0\x80", b"\0", b",", b"=", b"."),
)


def fresh(rng: random.Random) -> bytes:
    """Return bytes of small numbers, as lengths and flags mostly are."""
    size = rng.randint(0, rng.choice((8, 40, 200)))
    return bytes(
        rng.choice(_BYTES) if rng.random() < 0.8 else rng.randrange(256) for _ in range(size)
    )


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return bytes that were flipped, cut, repeated, replaced, or taken from another input."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + rng.randint(1, 8)]
            case 4:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 5:
                start = rng.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + rng.randint(1, 64)]
            case 6 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                changed[at:] = other[start:]
            case _:
                limit = rng.choice(_LIMITS)
                changed[at : at + len(limit)] = limit
    return bytes(changed[:SIZE_MAX])
