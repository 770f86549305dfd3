"""Kernels: from positions and sizes to the buffers of Arrow's binary columns.

`gather` copies values next to each other (Arrow `binary`), `build_views` points at them where they
lie (`binary_view`).
"""

from typing import Any

import numpy as np
from numba import types

from lakehead.storage.kernel_compiler import BYTES, INTS, LONG, OUT, compiled, inlined
from lakehead.storage.kernel_memory import copy_bytes


@inlined
def _word(data: Any, at: Any, size: Any) -> Any:
    """Return up to 4 bytes as the integer that they are in memory (little-endian, as Arrow is)."""
    word = np.uint32(0)
    for i in range(min(size, 4)):
        word |= np.uint32(data[at + i]) << np.uint32(8 * i)
    return np.int32(word)


@compiled(types.void(BYTES, BYTES, INTS, INTS, LONG, INTS, OUT, OUT))
def gather(
    data: Any,
    inflated: Any,
    at: Any,
    size: Any,
    start: Any,
    offsets: Any,
    values: Any,
    validity: Any,
) -> Any:
    """Copy rows [start, start + len(offsets) - 1) into `values`; `offsets` delimit them.

    `values` must hold the sum of the sizes. `validity` is zeroed and of length 0 if no row is null.
    """
    filled = np.int64(0)
    offsets[0] = 0
    for i in range(offsets.shape[0] - 1):
        length = np.int64(size[start + i])
        if length >= 0:
            if validity.shape[0] > 0:
                validity[i >> 3] |= np.uint8(1 << (i & 7))
            position = np.int64(at[start + i])
            if position >= 0:
                copy_bytes(values, filled, data, position, length)
            else:
                copy_bytes(values, filled, inflated, ~position, length)
            filled += length
        offsets[i + 1] = filled


@compiled(types.void(BYTES, BYTES, INTS, INTS, LONG, LONG, INTS, OUT))
def build_views(
    data: Any, inflated: Any, at: Any, size: Any, start: Any, count: Any, views: Any, validity: Any
) -> Any:
    """Write the views, four integers each, of rows [start, start + count): buffer 0 is `data`,
    buffer 1 is `inflated`.

    A value of up to 12 bytes lies in its view. `validity` is zeroed, and of length 0 if no row is
    null.
    """
    for i in range(count):
        length = np.int64(size[start + i])
        view = 4 * i
        if length < 0:
            for j in range(4):
                views[view + j] = 0
            continue
        if validity.shape[0] > 0:
            validity[i >> 3] |= np.uint8(1 << (i & 7))
        position = np.int64(at[start + i])
        is_inflated = position < 0
        source = inflated if is_inflated else data
        position = ~position if is_inflated else position
        views[view] = length
        views[view + 1] = _word(source, position, length)
        if length <= 12:
            views[view + 2] = _word(source, position + 4, length - 4)
            views[view + 3] = _word(source, position + 8, length - 8)
        else:
            views[view + 2] = 1 if is_inflated else 0
            views[view + 3] = position


@compiled(LONG(INTS, INTS, INTS, LONG, LONG, LONG, INTS))
def cut_rows(
    key_size: Any,
    value_size: Any,
    headers_size: Any,
    rows: Any,
    rows_max: Any,
    bytes_max: Any,
    cuts: Any,
) -> Any:
    """Cut `rows` into pieces of at most `rows_max` rows and `bytes_max` bytes (or one row); return
    how many.

    `cuts[i]` is the row after piece i. Columns of length 0 are not requested.
    """
    pieces = 0
    held = 0
    taken = np.int64(0)
    for row in range(rows):
        size = np.int64(0)
        if key_size.shape[0] > 0:
            size += max(key_size[row], 0)
        if value_size.shape[0] > 0:
            size += max(value_size[row], 0)
        if headers_size.shape[0] > 0:
            size += headers_size[row]
        if held == rows_max or (held > 0 and taken + size > bytes_max):
            cuts[pieces] = row
            pieces += 1
            held = 0
            taken = np.int64(0)
        held += 1
        taken += size
    if held > 0:
        cuts[pieces] = rows
        pieces += 1
    return pieces
