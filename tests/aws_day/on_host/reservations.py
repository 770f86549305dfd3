"""Persistent reservations of an io2 volume that two hosts have, by the WAL's own code.

`hold VOLUME SECONDS` registers, reserves and writes until it is refused. `take VOLUME plain|abort`
registers, preempts the holder, writes once. `look VOLUME` reads who holds it. `clear VOLUME` frees
it. The volume has nothing of value.
"""

import asyncio
import json
import mmap
import os
import sys
from collections.abc import Callable

from lakehead.storage.aws.volumes import NvmeDevices
from lakehead.storage.clock import SystemClock
from lakehead.storage.wal.reservation_ioctl import IoctlReservation

HOLDER, TAKER = 0xA11CE, 0xB0B
_BLOCK = 4096
_CLOCK = SystemClock()
_SETTLE_S = 5.0


async def in_thread(call: Callable[[], int]) -> int:
    """Run a call that blocks."""
    return await asyncio.to_thread(call)


def write_block(fd: int) -> None:
    """Write a block through every cache. Raises OSError."""
    with mmap.mmap(-1, _BLOCK) as block:
        os.pwrite(fd, block, 0)


async def hold(volume: str, seconds: float) -> dict[str, float]:
    """Be the host that is fenced."""
    path = NvmeDevices().path(volume)
    reservation = IoctlReservation.open(path, in_thread)
    await reservation.register(HOLDER)
    reserved = await reservation.reserve(HOLDER)
    fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    began, writes, last_ms, refused = _CLOCK.monotonic(), 0, 0, 0
    while _CLOCK.monotonic() - began < seconds:
        at_ms = _CLOCK.now_ms()
        try:
            write_block(fd)
        except OSError as error:
            refused = error.errno or 0
            break
        writes, last_ms = writes + 1, at_ms
    return {
        "reserved": int(reserved),
        "writes": writes,
        "last_write_began_ms": last_ms,
        "refused_errno": refused,
    }


async def take(volume: str, way: str) -> dict[str, float]:
    """Be the host that fences."""
    path = NvmeDevices().path(volume)
    reservation = IoctlReservation.open(path, in_thread, aborts=way == "abort")
    await reservation.register(TAKER)
    await asyncio.sleep(_SETTLE_S)  # the holder writes meanwhile
    began = _CLOCK.monotonic()
    done = await reservation.preempt(TAKER, HOLDER)
    took_ms = (_CLOCK.monotonic() - began) * 1000
    returned_ms = _CLOCK.now_ms()
    write_block(os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC))
    return {"done": int(done), "preempt_ms": took_ms, "returned_ms": returned_ms}


async def look(volume: str) -> dict[str, float]:
    """Read the holder's key, where the kernel can: -1 where it cannot."""
    reservation = IoctlReservation.open(NvmeDevices().path(volume), in_thread)
    holder = await reservation.holder()
    return {"holder": -1 if holder is None else holder, "is_taker": int(holder == TAKER)}


async def clear(volume: str) -> dict[str, float]:
    """Free the volume, from the taker's host."""
    reservation = IoctlReservation.open(NvmeDevices().path(volume), in_thread)
    await reservation.register(TAKER)
    return {"cleared": int(await reservation.clear(TAKER))}


def main() -> None:
    """Do what the arguments say, and print the figures."""
    what, volume, *rest = sys.argv[1:]
    if what == "hold":
        told = asyncio.run(hold(volume, float(rest[0])))
    elif what == "take":
        told = asyncio.run(take(volume, rest[0]))
    else:
        told = asyncio.run({"look": look, "clear": clear}[what](volume))
    print("FIGURES " + json.dumps(told))


if __name__ == "__main__":
    main()
