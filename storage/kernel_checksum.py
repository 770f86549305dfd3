"""CRC-32C for kernels, by the processor's own instruction where it has one.

A step takes eight bytes. x86-64 has it since SSE 4.2 (2008), ARM with the extension `crc`, which
ARMv8.1 demands; elsewhere a step is 64 small ones. Compiled kernels are kept for one kind of
processor (numba's cache knows its name and its features), so the choice is made when they are.
"""

from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils

_POLYNOMIAL = 0x82F63B78
_INSTRUCTIONS = (
    ("sse4.2", "llvm.x86.sse42.crc32.64.64", 64),
    ("crc", "llvm.aarch64.crc32cx", 32),
)
"""A feature of processors, what it is called by, and the bits that it takes the checksum in."""


def _step_type(_context: Any, _crc: Any, _word: Any) -> Any:
    """Take eight bytes, the first of them the lowest, into a checksum of 64 bits."""
    features = binding.get_host_cpu_features()

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        crc, word = arguments
        long = ir.IntType(64)
        for feature, name, bits in _INSTRUCTIONS:
            if features.get(feature, False):
                held = ir.IntType(bits)
                kind = ir.FunctionType(held, [held, long])
                step = cgutils.get_or_insert_function(builder.module, kind, name)
                given = crc if bits == 64 else builder.trunc(crc, held)
                made = builder.call(step, [given, word])
                return made if bits == 64 else builder.zext(made, long)
        return _small_steps(builder, builder.xor(crc, word))

    return types.uint64(types.uint64, types.uint64), generate


def _small_steps(builder: Any, value: Any) -> Any:
    one, polynomial = ir.Constant(value.type, 1), ir.Constant(value.type, _POLYNOMIAL)
    for _ in range(64):
        odd = builder.neg(builder.and_(value, one))
        value = builder.xor(builder.lshr(value, one), builder.and_(odd, polynomial))
    return value


crc32c_step: Any = intrinsic(_step_type)
"""`crc32c_step(crc, word)`: a checksum begins as 0xFFFFFFFF, and is inverted at its end."""


def _byte_steps() -> Any:
    steps = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        steps = (steps >> np.uint64(1)) ^ np.uint64(_POLYNOMIAL) * (steps & np.uint64(1))
    return steps


BYTE_STEPS = _byte_steps()
"""For the bytes behind the last eight: a step is `BYTE_STEPS[(crc ^ byte) & 0xFF] ^ (crc >> 8)`."""
