"""Primitives for kernels that numba lacks: fast copies, prefetching, eight bytes as one
number, leading zeros.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils


def _copy_type(_context: Any, target: Any, _to: Any, source: Any, _from: Any, _size: Any) -> Any:
    """Copy bytes by memcpy: a byte loop is four times slower."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_at, origin, origin_at, length = arguments
        to = context.make_array(signature.args[0])(context, builder, to).data
        origin = context.make_array(signature.args[2])(context, builder, origin).data
        to = cgutils.pointer_add(builder, to, to_at)
        origin = cgutils.pointer_add(builder, origin, origin_at)
        cgutils.raw_memcpy(builder, to, origin, length, ir.Constant(length.type, 1))
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64, types.int64), generate


copy_bytes: Any = intrinsic(_copy_type)
"""`copy_bytes(target, to, source, at, size)`."""


def _prefetch_type(_context: Any, data: Any, _at: Any) -> Any:
    """Prefetch a byte's cache line. An address beyond the data harms nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at = arguments
        start = context.make_array(signature.args[0])(context, builder, array).data
        pointer = cgutils.pointer_add(builder, start, at)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        read, keep, of_data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, of_data])
        return context.get_dummy_value()

    return types.none(data, types.int64), generate


prefetch: Any = intrinsic(_prefetch_type)
"""`prefetch(array, at)`, in bytes from its start."""


def _word_type(_context: Any, data: Any, _at: Any) -> Any:
    """Return the eight bytes at a place as a number, the first of them the lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at = arguments
        start = context.make_array(signature.args[0])(context, builder, array).data
        place = cgutils.pointer_add(builder, start, at)
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.int64), generate


word_at: Any = intrinsic(_word_type)
"""`word_at(array, at)`, on machines with the lowest byte first: as fast as one byte is read."""


def _leading_zeros_type(_context: Any, _word: Any) -> Any:
    """Count the zero bits above the highest bit that is set, by the processor's instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        [word] = arguments
        flag = ir.IntType(1)
        kind = ir.FunctionType(word.type, [word.type, flag])
        function = builder.module.declare_intrinsic("llvm.ctlz", [word.type], kind)
        return builder.call(function, [word, ir.Constant(flag, 0)])

    return types.int64(types.uint64), generate


leading_zeros: Any = intrinsic(_leading_zeros_type)
"""`leading_zeros(word)`: 64 for zero."""
