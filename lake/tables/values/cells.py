"""Memory that a decode kernel fills: columns of 64-bit cells that grow where lists need it.

A *slot* is one column of cells with a validity byte each, a *domain* what its cells are counted by:
domain 0 is the rows, every list has a domain of its own, its items. All slots of a domain are
equally long, so a kernel counts domains and not columns. Cells are zero and not valid until they
are written: what a value leaves out is null without anyone writing it.

A cell is an integer, the bits of a float, or a place in the value: position << 31 | size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

ROWS = 0
"""The domain of the rows."""

SIDE = 1 << 62
"""Added to a place that is not in the value but in a buffer beside it."""

SIZE_BITS = 31
SIZE_MASK = (1 << SIZE_BITS) - 1

NOTHING = np.zeros(1, np.uint8)
"""No buffer beside the values."""

_ITEMS_AT_FIRST = 64


class Cells:
    """The slots of one decode. The arrays are handed to kernels, which write them.

    `side` is the buffer of places with SIDE, if the kernel wrote one.
    """

    def __init__(self, domains: Sequence[int], domain_count: int, rows: int) -> None:
        """`domains[slot]` is a slot's domain; `rows` is how many rows there can be."""
        self.domains = np.array(domains, np.int64)
        self.held = np.zeros(domain_count, np.int64)
        self.capacity = np.full(domain_count, max(rows, _ITEMS_AT_FIRST), np.int64)
        self.capacity[ROWS] = rows
        self.side = NOTHING
        self._allocate()

    def _allocate(self) -> None:
        # One cell more than the capacity: the item that a kernel is about to write may fail.
        lengths = self.capacity[self.domains] + 1
        self.base = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:-1]
        total = int(lengths.sum())
        self.values = np.zeros(total, np.int64)
        self.valid = np.zeros(total, np.uint8)

    def grow(self, domain: int) -> None:
        """Double the room of a domain."""
        old_base, old_values, old_valid = self.base, self.values, self.valid
        self.capacity[domain] *= 2
        self._allocate()
        for slot, of in enumerate(self.domains):
            length = self.held[of]
            origin = slice(old_base[slot], old_base[slot] + length)
            target = slice(self.base[slot], self.base[slot] + length)
            self.values[target] = old_values[origin]
            self.valid[target] = old_valid[origin]

    def length(self, domain: int) -> int:
        """Number of cells of each slot of a domain so far."""
        return int(self.held[domain])

    def slot(self, slot: int) -> tuple[Any, Any]:
        """The cells of a slot and their validity bytes."""
        place = slice(self.base[slot], self.base[slot] + self.held[self.domains[slot]])
        return self.values[place], self.valid[place]
