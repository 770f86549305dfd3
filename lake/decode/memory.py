"""Memory of Arrow's pool as NumPy arrays.

The pool hands out again what was freed. Fresh pages of the kernel cost 0.55 ns for each byte on the
machine of the benchmarks, more than all the rest of a decode; `numpy.empty` takes them anew for
every large array.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def empty(count: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array of `count` elements. It keeps its memory, and so does whatever
    is made of it without a copy.
    """
    if not count:  # NumPy makes no array of an empty buffer
        return np.empty(0, kind)
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def zeros(count: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Return an array of `count` zeros, as `empty` does."""
    array = empty(count, kind)
    array.fill(0)
    return array
