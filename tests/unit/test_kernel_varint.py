"""Varints of kernels and of Python follow one rule; kernels on disk follow their helpers."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import config

from lakehead.storage import kernel_compiler, kernel_varint
from lakehead.storage.format.varint import (
    INT_BITS,
    LONG_BITS,
    encode_uvarint,
    encode_varint,
    read_uvarint,
    read_varint,
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
EXACT = int(kernel_varint.EXACT_BITS)
KERNEL = """
from lakehead.storage.kernel_compiler import LONG, compiled

@compiled(LONG(LONG))
def doubled(number):
    return 2 * number
"""


def by_kernel(data: bytes, bits: int) -> tuple[int, int]:
    array = np.frombuffer(data + b"\1", np.uint8)
    value, at = kernel_varint.varint(array, np.int64(0), np.int64(len(data)), np.uint64(bits))
    return int(value), int(at)


@given(LONGS)
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    data = encode_varint(number)
    assert read_varint(data, 0) == (number, len(data))
    assert by_kernel(data, LONG_BITS) == by_kernel(data, EXACT) == (number, len(data))
    out = np.zeros(10, np.uint8)
    assert kernel_varint.put_varint(out, 0, np.int64(number)) == len(data)
    assert out[: len(data)].tobytes() == data
    assert kernel_varint.varint_size(np.int64(number)) == len(data)


@given(st.binary(max_size=12), st.sampled_from([INT_BITS, LONG_BITS]))
@example(b"\xff" * 4 + b"\x7f", INT_BITS)
@example(b"\xff" * 5 + b"\x00", INT_BITS)
@example(b"\xff" * 9 + b"\x7f", LONG_BITS)
@example(b"\xff" * 10 + b"\x00", LONG_BITS)
def test_kernels_and_python_refuse_the_same(data: bytes, bits: int) -> None:
    try:
        value, at = read_uvarint(data, 0, bits)
    except (IndexError, ValueError):
        assert by_kernel(data, bits) == (0, -1)
        return
    cut = value % (1 << 64)
    assert by_kernel(data, bits) == ((cut >> 1) ^ -(cut & 1), at)


@pytest.mark.parametrize(("number", "end"), [((1 << 64) - 1, 10), (1 << 64, -1), (1 << 69, -1)])
def test_an_exact_number_has_64_bits(number: int, end: int) -> None:
    assert by_kernel(encode_uvarint(number), EXACT)[1] == end


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_kernel_on_disk_is_compiled_again_when_a_shared_helper_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernel_of_a_test.py"
    path.write_text(KERNEL)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "kernel_of_a_test", ModuleType("kernel_of_a_test"))

    def hits() -> int:
        kernel: Any = loaded(path).doubled
        assert kernel(21) == 42
        return sum(kernel.stats.cache_hits.values())

    assert [hits(), hits()] == [0, 1]
    changed = kernel_compiler.helpers_stamp() + " changed"
    monkeypatch.setattr(kernel_compiler, "helpers_stamp", lambda: changed)
    assert [hits(), hits()] == [0, 1]


def test_the_helpers_of_other_files_are_in_modules_that_the_stamp_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel_compiler.helpers_stamp()
    for name in ("kernel_varint.py", "kernel_memory.py", "kernel_checksum.py"):
        (tmp_path / name).write_bytes((Path(kernel_compiler.__file__).parent / name).read_bytes())
    monkeypatch.setattr(kernel_compiler, "files", lambda _: tmp_path)
    kernel_compiler.helpers_stamp.cache_clear()
    try:
        copied = kernel_compiler.helpers_stamp()
        (tmp_path / "kernel_varint.py").write_text("")
        kernel_compiler.helpers_stamp.cache_clear()
        assert len({before, copied, kernel_compiler.helpers_stamp()}) == 3
    finally:
        kernel_compiler.helpers_stamp.cache_clear()
