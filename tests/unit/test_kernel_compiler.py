"""Kernels on disk: found by every copy of their source, and compiled again when one part of it
changes.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from llvmlite import binding  # type: ignore[import-untyped]
from numba import config

from lakehead.storage import kernel_compiler

KERNEL = """
from lakehead.storage.kernel_compiler import LONG, compiled
from constants_of_a_test import FACTOR


@compiled(LONG(LONG))
def scaled(number):
    return FACTOR * number
"""
NAME = "kernel_of_a_clone"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setitem(sys.modules, NAME, ModuleType(NAME))
    set_factor(monkeypatch, 2)
    return tmp_path


def set_factor(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    constants: Any = ModuleType("constants_of_a_test")
    constants.FACTOR = factor
    monkeypatch.setitem(sys.modules, "constants_of_a_test", constants)


def written(folder: Path, *, text: str = KERNEL, seconds: int = 0) -> Path:
    folder.mkdir()
    path = folder / f"{NAME}.py"
    path.write_text(text)
    os.utime(path, (seconds, seconds))
    return path


def load(path: Path) -> tuple[int, bool]:
    """Return the kernel's result for 21, and whether it was found on disk."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module.scaled(21), bool(sum(module.scaled.stats.cache_hits.values()))


def test_a_fresh_clone_finds_the_kernels_of_another(folder: Path) -> None:
    assert load(written(folder / "first", seconds=1_000_000)) == (42, False)
    assert load(written(folder / "second", seconds=2_000_000)) == (42, True)


def test_a_kernel_is_compiled_again_when_its_file_changes(folder: Path) -> None:
    load(written(folder / "first"))
    changed = KERNEL.replace("FACTOR * number", "FACTOR * number + 1")
    assert load(written(folder / "second", text=changed)) == (43, False)


def test_a_kernel_is_compiled_again_when_an_imported_constant_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(written(folder / "first"))
    set_factor(monkeypatch, 3)
    assert load(folder / "first" / f"{NAME}.py") == (63, False)


def test_a_kernel_of_another_processor_is_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder / "first")
    before = kernel_compiler.kernel_stamp(load)
    load(path)
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "another")
    assert kernel_compiler.kernel_stamp(load) != before
    assert load(path) == (42, False)


def test_only_the_newest_versions_of_a_kernel_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_compiler, "_FILES_KEPT", 4)
    load(written(folder / "0"))
    first = set((folder / "kernels").iterdir())
    for number, path in enumerate(sorted(first)):
        os.utime(path, (number, number))
    load(written(folder / "1", text=KERNEL + "# 1"))
    assert first < set((folder / "kernels").iterdir())
    load(written(folder / "2", text=KERNEL + "# 2"))
    left = set((folder / "kernels").iterdir())
    assert len(left) == 4
    assert not left & first


def test_kernels_are_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = kernel_compiler.kernels_folder()
    assert found == tmp_path / "cache" / "lakehead" / "kernels"
    assert found.stat().st_mode & 0o777 == 0o700
    found.chmod(0o777)  # others could put code there
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert kernel_compiler.kernels_folder().parent == tmp_path


def test_helpers_count_no_references_to_the_arrays_of_their_kernel() -> None:
    """Counting is atomic: two steps for each array and call, in the innermost loops."""

    @kernel_compiler.inlined
    def byte_of(data: Any, at: Any) -> Any:
        return data[at]

    @kernel_compiler.compiled(kernel_compiler.LONG(kernel_compiler.BYTES))
    def total(data: Any) -> Any:
        found = 0
        for i in range(data.shape[0]):
            found += byte_of(data, i)
        return found

    array = np.arange(200, dtype=np.uint8)
    held = sys.getrefcount(array)
    assert total(array) == sum(range(200))
    assert sys.getrefcount(array) == held
    helper: Any = byte_of
    [code] = helper.inspect_llvm().values()
    assert "NRT_incref" not in code
