"""The place of a node's write-ahead log: room for it, and the latency of a durable write there."""

import errno
import os
import statistics
import tempfile
from mmap import mmap
from pathlib import Path
from urllib.parse import parse_qsl

from lakehead.broker.diagnosis.finding import Finding, failed, ok, warning
from lakehead.broker.diagnosis.machine import judge_room
from lakehead.storage.clock import Clock
from lakehead.storage.wal.block_address import parse_size

_SECTOR = 4096
_WRITES = 20
_SLOW_WRITE_S = 0.010


def judge_log(uri: str, *, clock: Clock) -> list[Finding]:
    """Judge the write-ahead log at `uri`, with its size in it, as `Settings.wal_uri` gives it."""
    kind, _, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    if kind == "memory":
        advice = "acknowledged records are lost with the process: use block: or object:"
        return [warning("write-ahead log", "in memory", advice)]
    if kind == "object":
        return [ok("write-ahead log", "in the object store")]
    if place.startswith("ebs:"):
        return [ok("write-ahead log", f"{place}: attached when the node starts")]
    path = Path(place)
    if path.is_block_device():
        return [_disk(path)]
    wanted = parse_size(dict(parse_qsl(query))["size"], uri)
    there = path.stat().st_size if path.is_file() else 0
    room = judge_room(path.parent, max(wanted - there, 0), "write-ahead log")
    if room.advice:
        return [room]
    return [room, _durable_writes(path.parent, clock, has_room=there >= wanted)]


def _disk(path: Path) -> Finding:
    if not os.access(path, os.R_OK | os.W_OK):
        return failed(
            "write-ahead log", f"{path} cannot be written", "run as a user of the group disk"
        )
    return ok("write-ahead log", f"{path} is a disk that can be written")


def _durable_writes(folder: Path, clock: Clock, *, has_room: bool) -> Finding:
    """Time durable writes of a sector to a file of ours beside the log, which `has_room` already
    for all of it or not.
    """
    parent = next(one for one in (folder, *folder.parents) if one.is_dir())
    check = "durable writes"
    taken = []
    with tempfile.NamedTemporaryFile(dir=parent, prefix=".lakehead-doctor-") as file:
        flags = os.O_WRONLY | os.O_DSYNC
        try:
            fd = os.open(file.name, flags | os.O_DIRECT)
        except OSError:
            fd = os.open(file.name, flags)
        try:
            with mmap(-1, _SECTOR) as sector:
                for number in range(_WRITES):
                    begun = clock.monotonic()
                    os.pwrite(fd, sector, number * _SECTOR)
                    taken.append(clock.monotonic() - begun)
        except OSError as error:
            if has_room and error.errno == errno.ENOSPC:
                advice = "the log has its room already; free some for this check"
                return warning(check, f"{parent} is full: not tried", advice)
            return failed(check, f"{parent}: {error.strerror}", "name another path for the log")
        finally:
            os.close(fd)
    median = statistics.median(taken)
    found = f"{median * 1000:.2f} ms, at most {max(taken) * 1000:.2f} ms, in {parent}"
    if median > _SLOW_WRITE_S:
        advice = "each produce request waits for such a write: use a faster disk"
        return warning(check, found, advice)
    return ok(check, found)
