"""Compiles the kernels to machine code, once per machine.

A kernel names its signature, so nothing is compiled for types that were not meant, and is kept on
disk, so a fresh Spark worker loads it instead of compiling.

A kernel is kept under a key of all that it is made from: its file, the modules `kernel_*.py` here,
whose helpers are compiled into kernels of other files, the constants that its file imports, the
releases of numba and llvmlite, and the processor. Places and times of files are no part of it. So
another clone or environment of this user finds the kernels of the first.

They lie in `NUMBA_CACHE_DIR`, else in the user's cache folder, or, where neither can be written (a
container with a read-only image and no home), in a private temporary folder.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import re
import stat
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from llvmlite import binding
from numba import config, njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache

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

_NAME_LENGTH = 16
_FILES_KEPT = 32
"""Of a kernel, two for each version: several releases, or clones, may be in use."""


def results(count: int) -> Any:
    """Return the type of a kernel that returns `count` integers."""
    return types.UniTuple(types.int64, count)  # type: ignore[no-untyped-call]


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile a kernel ahead of its first call, or load it from the cache. Kernels run without the
    GIL.
    """

    def compile_kernel(function: F) -> F:
        kernel: Any = njit(nogil=True, error_model="numpy")(function)
        # numba has no public way to name a cache.
        kernel._cache = _KernelCache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001
        kernel.compile(signature)
        kernel.disable_compile()
        return cast(F, kernel)

    return compile_kernel


def inlined(function: F) -> F:
    """Mark a helper of kernels: compiled into each kernel that calls it, never called from Python.

    A helper lives in the file of its kernels or in a module `kernel_*.py` beside this one, because
    a kernel on disk is compiled again when one of these changes and only then. It makes no arrays:
    it counts no references to them. Kernels have their arrays as long as they run, and to count
    each array in and out at each call of a helper took up to two thirds of a kernel's time.
    """
    compile_helper: Any = njit  # numba has no public name for `_nrt` either
    options = {"nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    return cast(F, compile_helper(function, **options))


class _KernelLocator:
    """The place of a kernel on disk, as numba's caches want it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._stamp = kernel_stamp(function)

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> Self:
        return cls(function)

    def ensure_cache_path(self) -> None:
        """Do nothing: `kernels_folder` makes it."""

    def get_cache_path(self) -> str:
        return str(kernels_folder())

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return self._stamp[:_NAME_LENGTH]


class _KernelCacheImpl(CompileResultCacheImpl):
    _locator_classes = [_KernelLocator]  # type: ignore[list-item]  # noqa: RUF012 - numba's name


class _KernelCache(FunctionCache):
    _impl_class = _KernelCacheImpl

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, and the newest of its other versions."""
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        name = self._impl.filename_base.partition("-")[0]
        made: list[tuple[float, Path]] = []
        for path in kernels_folder().glob(f"{name}-*"):
            with contextlib.suppress(OSError):
                made.append((path.stat().st_mtime, path))
        for _, path in sorted(made)[:-_FILES_KEPT]:
            path.unlink(missing_ok=True)


def kernel_stamp(function: Callable[..., Any]) -> str:
    """Return a hash of all that a kernel is made from but its name and signature."""
    digest = hashlib.sha256(Path(inspect.getfile(function)).read_bytes())
    constants = {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in function.__globals__.items()
        if not name.startswith("__")
        and isinstance(value, int | float | bytes | np.generic | np.ndarray)
    }
    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    releases = numba.__version__, llvmlite.__version__, config.BOUNDSCHECK  # type: ignore[attr-defined]
    digest.update(repr((helpers_stamp(), sorted(constants.items()), processor, releases)).encode())
    return digest.hexdigest()


@functools.cache
def helpers_stamp() -> str:
    """Return a hash of the modules whose helpers are compiled into kernels of other files."""
    names = {item.name: item for item in files(__package__).iterdir()}
    modules = [names[name] for name in sorted(names) if re.fullmatch(r"kernel_\w+\.py", name)]
    return hashlib.sha256(b"\0".join(module.read_bytes() for module in modules)).hexdigest()


def kernels_folder() -> Path:
    """Return the folder of kernels, which only this user can write: cached code is executed, so no
    other user may put any there. Raises LakeheadError if there is none.
    """
    if configured := config.CACHE_DIR:  # type: ignore[attr-defined]
        folder = Path(configured)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        base = os.environ.get("XDG_CACHE_HOME")
        cache = Path(base) if base else Path.home() / ".cache"
        folder = cache / "lakehead" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(folder) and os.access(folder, os.W_OK):
            return folder
    return _private_folder()


def _private_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"lakehead-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise LakeheadError(
            f"{folder} is not a folder that only this user can write: set NUMBA_CACHE_DIR"
        )
    return folder


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    is_mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_mine and not status.st_mode & 0o022
