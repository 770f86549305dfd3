"""Checks the checksums of index items and of the batches in them, and reads each byte once.

Both are CRC-32C, and most bytes are under both. So one sum runs through each item, and its values
before and after a batch give the batch's own: the sum of A and B is that of A, moved on by the
length of B, exclusive-or that of B.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from lakehead.lake.decode import batches as scan
from lakehead.storage.format.record_batch import ATTRIBUTES_POSITION
from lakehead.storage.kernel_compiler import LONG, LONGS, compiled, inlined

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
"""Polynomials lie in integers with the lowest power in the highest bit."""


def _product(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _powers() -> npt.NDArray[np.int64]:
    """X to the powers of 8, 16, 32 and so on: what moves a sum on by 1, 2, 4 bytes."""
    powers = [_ONE >> 8]
    for _ in range(31):
        powers.append(_product(powers[-1], powers[-1]))
    return np.array(powers, np.int64)


_POWERS = _powers()


@inlined
def _moved(crc: Any, size: Any) -> Any:
    """Return what a sum is `size` bytes of zero sums later."""
    step = 0
    while size > 0:
        if size & 1:
            power, product = _POWERS[step], np.int64(0)
            for bit in range(31, -1, -1):
                if power >> bit & 1:
                    product ^= crc
                crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
            crc = product
        size >>= 1
        step += 1
    return crc


@compiled(LONG(LONGS, LONGS, LONGS, LONGS))
def first_wrong(before: Any, after: Any, sizes: Any, crcs: Any) -> Any:
    """Return the first batch whose sum is not `crcs`, or -1. The sum that runs through them is
    `before` and `after` its `sizes` bytes.
    """
    for i in range(before.shape[0]):
        if after[i] ^ _moved(before[i], sizes[i]) != crcs[i]:
            return i
    return -1


class ChecksumFault(Exception):
    """A checksum that failed at `position`: of the batch in row `batch`, or of an item (-1)."""

    def __init__(self, position: int, batch: int = -1) -> None:
        super().__init__(position, batch)
        self.position = position
        self.batch = batch


def check(data: memoryview, table: npt.NDArray[np.int64], items: Sequence[tuple[int, int]]) -> None:
    """Raise ChecksumFault unless `items`, (size, checksum) each, are what `data` is made of, and
    the batches in `table` are as their producers sent them. Without items only batches are checked.
    """
    positions = table[
        :, scan.BATCH_POSITION
    ].tolist()  # flat: nothing that garbage is looked for in
    ends = (table[:, scan.BATCH_POSITION] + table[:, scan.BATCH_SIZE]).tolist()
    before: list[int] = []
    after: list[int] = []
    batch, count, at, end = 0, len(positions), 0, 0
    for size, expected in items or ((len(data), -1),):
        start, end, crc = end, end + size, 0
        while batch < count and ends[batch] <= end:
            covered = positions[batch] + ATTRIBUTES_POSITION
            crc = crc32c(data[at:covered], crc)
            before.append(crc)
            at = ends[batch]
            crc = crc32c(data[covered:at], crc)
            after.append(crc)
            batch += 1
        crc = crc32c(data[at:end], crc)
        if expected not in (-1, crc):
            raise ChecksumFault(start)
        at = end
    if batch < count:  # it lies in none of the items
        raise ChecksumFault(positions[batch], batch)
    sizes = table[:, scan.BATCH_SIZE] - ATTRIBUTES_POSITION
    crcs = np.ascontiguousarray(table[:, scan.CRC])
    wrong = first_wrong(np.array(before, np.int64), np.array(after, np.int64), sizes, crcs)
    if wrong >= 0:
        raise ChecksumFault(positions[wrong], int(wrong))
