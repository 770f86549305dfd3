"""The zeros that a new write-ahead log gets beside its first writes: measurements wait for them."""

import time
from pathlib import Path

from lakehead.storage.wal.zero_fill import unwritten_extents

WAIT_S_MAX = 60.0
_LEFT_OUT = 4 << 20
"""Bytes between the slices of a volume that no node fills: fewer than these."""


def wait_filled(path: Path) -> None:
    """Wait until the nodes on a volume have filled it, for a minute at most."""
    deadline = time.monotonic() + WAIT_S_MAX
    with path.open("rb") as file:
        size = path.stat().st_size
        while time.monotonic() < deadline and any(
            end - start > _LEFT_OUT for start, end in unwritten_extents(file.fileno(), 0, size)
        ):
            time.sleep(0.1)
