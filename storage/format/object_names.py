"""Names of data objects: `data/<2 hex digits>/<node id>-<node epoch>-<number>` for a node's
uploads, `data/<2 hex digits>/job-<entry>-<16 hex digits>` for jobs, which put objects in the place
of others.

No name is used twice, and each limits the time of its commit. An upload can be committed until its
node epoch has ended. A job's object can be committed until the metadata log is `JOB_ENTRIES_MAX`
entries beyond `entry`, the next one when the job began to write. The first digits are of the name's
CRC; they spread keys over a store's partitions.
"""

import re
from typing import NamedTuple

from crc32c import crc32c

PREFIX = "data/"
JOB_ENTRIES_MAX = 10_000
"""The number of entries by which the metadata log may grow while a job writes what it will
commit.
"""
_JOB_KEY = re.compile(r"data/[0-9a-f]{2}/job-(\d+)-([0-9a-f]{16})")
_KEY = re.compile(r"data/[0-9a-f]{2}/(\d+)-(\d+)-(\d+)")


class DataName(NamedTuple):
    """The name of an uploaded object."""

    node_id: int
    epoch: int
    number: int

    @property
    def key(self) -> str:
        """The object's key."""
        return _key(f"{self.node_id}-{self.epoch}-{self.number}")

    @classmethod
    def parse(cls, key: str) -> "DataName | None":
        """Return the name that a key is, None for a key of another kind."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), int(match[3]))
        return name if name.key == key else None


class JobName(NamedTuple):
    """The name of an object that a job wrote when the next entry was `entry`: 64 unique bits."""

    entry: int
    nonce: int

    @property
    def key(self) -> str:
        """The object's key."""
        return _key(f"job-{self.entry}-{self.nonce:016x}")

    def may_enter(self, entry: int) -> bool:
        """Return true if the metadata log's entry of this number, or a later one, may commit it."""
        return entry <= self.entry + JOB_ENTRIES_MAX

    @classmethod
    def parse(cls, key: str) -> "JobName | None":
        """Return the name that a key is, None for a key of another kind."""
        match = _JOB_KEY.fullmatch(key)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2], 16))
        return name if name.key == key else None


def _key(name: str) -> str:
    return f"{PREFIX}{crc32c(name.encode()) & 0xFF:02x}/{name}"
