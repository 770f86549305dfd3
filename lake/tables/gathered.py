"""Pieces of rows put together, for work that costs by the piece."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

LOOK_BYTES = 8 << 20
"""Of rows among which very many keys are looked for at once: that costs by the keys each time."""


def gathered(pieces: Iterable[Any], size_bytes: int = LOOK_BYTES) -> Iterator[Any]:
    """Yield Arrow tables one after the other as tables of at least `size_bytes`, but for the last
    one; no empty one.
    """
    held: list[Any] = []
    size = 0
    for rows in pieces:
        if not rows.num_rows:
            continue
        held.append(rows)
        size += rows.nbytes
        if size >= size_bytes:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
