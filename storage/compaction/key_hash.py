"""What keys are known by: SipHash-2-4 of 128 bits (Aumasson and Bernstein) under a secret of the
run. Who chooses keys cannot make two of them agree.

Kernels of another file are built with this one's `digest128`, and numba does not notice when it
changes; a hash that changes is another hash.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import BYTES, LONG, compiled, inlined, results
from lakehead.storage.kernel_memory import word_at


@inlined
def _turned(word: Any, bits: Any) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a += b
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c += d
    d = _turned(d, 16) ^ c
    a += d
    d = _turned(d, 21) ^ a
    c += b
    b = _turned(b, 17) ^ c
    c = _turned(c, 32)
    return a, b, c, d


@inlined
def _rest(data: Any, at: Any, size: Any) -> Any:
    """Return up to seven bytes as a number, the first the lowest."""
    word = np.uint64(0)
    for n in range(size):
        word |= np.uint64(data[at + n]) << np.uint64(8 * n)
    return word


@inlined
def digest128(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return the 128 bits that stand for a key, as two numbers, under a secret of two words."""
    a = np.uint64(low) ^ np.uint64(0x736F6D6570736575)
    b = np.uint64(high) ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    c = np.uint64(low) ^ np.uint64(0x6C7967656E657261)
    d = np.uint64(high) ^ np.uint64(0x7465646279746573)
    whole = size // 8
    for n in range(whole + 1):
        if n < whole:
            word = word_at(data, at + 8 * n)
        else:
            word = _rest(data, at + 8 * n, size - 8 * n) | (np.uint64(size) << np.uint64(56))
        d ^= word
        for _ in range(2):
            a, b, c, d = _round(a, b, c, d)
        a ^= word
    c ^= np.uint64(0xEE)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= np.uint64(0xDD)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return np.int64(first), np.int64(a ^ b ^ c ^ d)


@compiled(results(2)(BYTES, LONG, LONG, LONG, LONG))
def digest(data: Any, at: Any, size: Any, low: Any, high: Any) -> Any:
    """Return what `digest128` does, to Python."""
    return digest128(data, at, size, low, high)
