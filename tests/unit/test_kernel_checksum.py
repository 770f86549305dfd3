"""The checksum of kernels is CRC-32C, by the processor's instruction and without it."""

from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage import kernel_checksum
from lakehead.storage.compaction import kernels
from lakehead.storage.compaction.kernels import distrust
from lakehead.storage.kernel_checksum import crc32c_step
from lakehead.storage.kernel_compiler import BYTES
from lakehead.storage.kernel_memory import word_at


def verdict(data: bytes, crc: int, run: int = 0) -> tuple[int, int]:
    row = np.zeros((1, kernels.COLUMNS), np.int64)
    start = 5
    row[0, kernels.START], row[0, kernels.END] = start, start + kernels.CRC_FROM + len(data)
    row[0, kernels.CRC], row[0, kernels.RUN], row[0, kernels.BODY_SIZE] = crc, run, 9
    whole = np.frombuffer(bytes(start + kernels.CRC_FROM) + data + b"beyond", np.uint8)
    return distrust(whole, 0, 1, row), int(row[0, kernels.BODY_SIZE])


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_it_is_the_checksum_of_batches(data: bytes, other: int) -> None:
    assert verdict(data, crc32c(data)) == (0, 9)
    assert verdict(data, other) == ((0, 9) if other == crc32c(data) else (1, kernels.NOWHERE))
    assert verdict(data, other, run=-1) == (0, 9), "what stays as it is is not looked at"


def test_processors_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_checksum, "_INSTRUCTIONS", ())
    from numba import njit, types

    @njit(types.uint64(BYTES))
    def checksum(data: Any) -> Any:
        crc = np.uint64(0xFFFFFFFF)
        for n in range(data.shape[0] // 8):
            crc = crc32c_step(crc, word_at(data, 8 * n))
        return crc ^ np.uint64(0xFFFFFFFF)

    data = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8)
    assert checksum(data) == crc32c(data.data)
