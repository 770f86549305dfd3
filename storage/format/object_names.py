"""Names of data objects: `data/<2 hex digits>/<node id>-<node epoch>-<number>`.

Node epoch and number make a name that is never used twice, and tell who may still commit it: nobody
once that epoch has ended. The digits are of the name's CRC; they spread keys over a store's
partitions.
"""

import re
from typing import NamedTuple

from crc32c import crc32c

PREFIX = "data/"
_KEY = re.compile(r"data/[0-9a-f]{2}/(\d+)-(\d+)-(\d+)")


class DataName(NamedTuple):
    """Which upload an object is."""

    node_id: int
    epoch: int
    number: int

    @property
    def key(self) -> str:
        """The object's key."""
        name = f"{self.node_id}-{self.epoch}-{self.number}"
        return f"{PREFIX}{crc32c(name.encode()) & 0xFF:02x}/{name}"

    @classmethod
    def parse(cls, key: str) -> "DataName | None":
        """Return the name that a key is, None for a key of another kind."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), int(match[3]))
        return name if name.key == key else None
