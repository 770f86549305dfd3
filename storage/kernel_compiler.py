"""Compiles the kernels to machine code, once per machine.

A kernel names its signature, so nothing is compiled for types that were not meant, and is kept on
disk, so a fresh Spark worker loads it instead of compiling. The numba cache needs a writable
folder: next to the source, or the user's cache folder, or, where neither can be written (a
container with a read-only image and no home), a private temporary folder.

A kernel on disk is out of date when its own file changes, which numba sees, or one of the modules
`kernel_*.py` here, whose helpers are compiled into kernels of other files. Numba does not see
those, so their content is part of the key under which a kernel is kept.
"""

import functools
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit, types
from numba.core.caching import FunctionCache

from lakehead.storage.errors import LakeheadError

F = TypeVar("F", bound=Callable[..., Any])

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""Fetched or inflated bytes: read only, so writable arrays fit too."""
OUT = types.Array(types.uint8, 1, "C")
INTS = types.Array(types.int32, 1, "C")
LONGS = types.Array(types.int64, 1, "C")
TABLE = types.Array(types.int64, 2, "C")
LONG = types.int64
INT = types.int32


def results(count: int) -> Any:
    """Return the type of a kernel that returns `count` integers."""
    return types.UniTuple(types.int64, count)  # type: ignore[no-untyped-call]


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile a kernel ahead of its first call, or load it from the cache. Kernels run without the
    GIL.
    """

    def compile_kernel(function: F) -> F:
        try:
            return _compile(signature, function)
        except RuntimeError as error:  # numba found no folder to keep the result in
            if "no locator" not in str(error):
                raise
        config.CACHE_DIR = str(_private_folder())  # type: ignore[attr-defined]
        return _compile(signature, function)

    return compile_kernel


def inlined(function: F) -> F:
    """Mark a helper of kernels: compiled into each kernel that calls it, never called from Python.

    A helper lives in the file of its kernels or in a module `kernel_*.py` beside this one, because
    a kernel on disk is compiled again when one of these changes and only then.
    """
    return cast(F, njit(function, nogil=True, error_model="numpy", forceinline=True))


class _KernelCache(FunctionCache):
    """A kernel on disk, under a key with the content of the modules of shared helpers."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        key: Any = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return *key, helpers_stamp()


@functools.cache
def helpers_stamp() -> str:
    """Return a hash of the modules whose helpers are compiled into kernels of other files."""
    names = {item.name: item for item in files(__package__).iterdir()}
    modules = [names[name] for name in sorted(names) if re.fullmatch(r"kernel_\w+\.py", name)]
    return hashlib.sha256(b"\0".join(module.read_bytes() for module in modules)).hexdigest()


def _compile(signature: Any, function: F) -> F:
    kernel: Any = njit(nogil=True, error_model="numpy")(function)
    # numba has no public way to name a cache.
    kernel._cache = _KernelCache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001
    kernel.compile(signature)
    kernel.disable_compile()
    return cast(F, kernel)


def _private_folder() -> Path:
    """A folder only this user can write: cached code is executed, so no other user may put any
    there.
    """
    folder = Path(tempfile.gettempdir()) / f"lakehead-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise LakeheadError(
            f"{folder} is not a folder that only this user can write: set NUMBA_CACHE_DIR"
        )
    return folder
