"""Persistent reservations by the kernel's `IOC_PR_*` calls, for NVMe and SCSI disks alike.

Numbers and layouts: `linux/pr.h`. Facts that the header does not have, each found by trying:

- A refusal of the device is a *positive* result, not an errno, and `fcntl.ioctl` hides it when its
  argument is `bytes`: the argument must be a `bytearray`. Anything but 0 means "not done".
- The kernel gives the device's own status (SCSI 0x118, NVMe 0x83 for a conflict) up to 6.1 and
  PR_STS_* (0x18) later.
- With an old key of 0 NVMe registers, which a host that has another key is refused; with any other
  it replaces the key, whatever that was, of a host that has one. SCSI does both either way.
- In PREEMPT `old_key` is the caller's own key, and `new_key` the victim's.
- Up to 6.1 the calls need CAP_SYS_ADMIN; later any descriptor open for writing will do. They are
  refused on partitions. READ_RESERVATION came after 6.12.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from lakehead.storage.errors import SettingsError
from lakehead.storage.wal.reservation import ReservationsUnsupported

IOC_PR_REGISTER = 0x401870C8
IOC_PR_RESERVE = 0x401070C9
IOC_PR_RELEASE = 0x401070CA
IOC_PR_PREEMPT = 0x401870CB
IOC_PR_PREEMPT_ABORT = 0x401870CC
IOC_PR_CLEAR = 0x401070CD
IOC_PR_READ_RESERVATION = 0x801070CF

_REGISTRATION = struct.Struct("=QQII")  # old key, new key, flags, padding
_RESERVATION = struct.Struct("=QII")  # key, type, flags
_PREEMPTION = struct.Struct("=QQII")  # own key, victim's key, type, flags
_CLEARANCE = struct.Struct("=QII")  # key, flags, padding
_HELD = struct.Struct("=QII")  # key, generation, type

_WRITE_EXCLUSIVE = 1
_IGNORE_KEY = 1
_CONFLICTS = {0x18, 0x118, 0x83, 0x4083}  # PR_STS_RESERVATION_CONFLICT, SCSI, NVMe (0x4000: final)
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL}


class IoctlReservation:
    """A Reservation of a whole disk. `run` takes a call that blocks to a thread."""

    def __init__(
        self,
        path: Path,
        fd: int,
        run: Callable[[Callable[[], int]], Awaitable[int]],
        *,
        aborts: bool = True,
    ) -> None:
        self._name = str(path)
        self._fd = fd
        self._run = run
        self._preempt = IOC_PR_PREEMPT_ABORT if aborts else IOC_PR_PREEMPT

    @classmethod
    def open(
        cls,
        path: Path,
        run: Callable[[Callable[[], int]], Awaitable[int]],
        *,
        aborts: bool = True,
    ) -> IoctlReservation:
        """Open a disk. With `aborts`, a preemption also ends the victim's writes under way."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), run, aborts=aborts)

    async def register(self, key: int) -> None:
        """Register this host; see Reservation."""
        status = await self._register(0, key)
        if status in _CONFLICTS:
            status = await self._register(key, key)
        if status:
            raise OSError(errno.EIO, f"{self._name}: REGISTER was refused with status {status:#x}")

    async def reserve(self, key: int) -> bool:
        """Hold the device; see Reservation."""
        return self._is_done(
            "RESERVE",
            await self._call(
                IOC_PR_RESERVE, bytearray(_RESERVATION.pack(key, _WRITE_EXCLUSIVE, 0))
            ),
        )

    async def preempt(self, key: int, victim: int) -> bool:
        """Fence a host; see Reservation."""
        argument = bytearray(_PREEMPTION.pack(key, victim, _WRITE_EXCLUSIVE, 0))
        is_aborting = self._preempt == IOC_PR_PREEMPT_ABORT
        what = "PREEMPT AND ABORT (preempt=plain requires less)" if is_aborting else "PREEMPT"
        return self._is_done(what, await self._call(self._preempt, argument))

    async def clear(self, key: int) -> bool:
        """Free the device; see Reservation."""
        argument = bytearray(_CLEARANCE.pack(key, 0, 0))
        return self._is_done("CLEAR", await self._call(IOC_PR_CLEAR, argument))

    async def holder(self) -> int | None:
        """Return the holder's key where the kernel can read it; see Reservation."""
        held = bytearray(_HELD.size)
        try:
            status = await self._call(IOC_PR_READ_RESERVATION, held)
        except ReservationsUnsupported:
            return None
        return None if status else int(_HELD.unpack(held)[0])

    async def close(self) -> None:
        """Close the descriptor; see Reservation."""
        os.close(self._fd)

    async def _register(self, old: int, key: int) -> int:
        argument = bytearray(_REGISTRATION.pack(old, key, _IGNORE_KEY, 0))
        return await self._call(IOC_PR_REGISTER, argument)

    def _is_done(self, what: str, status: int) -> bool:
        if status and status not in _CONFLICTS:
            raise OSError(errno.EIO, f"{self._name}: {what} was refused with status {status:#x}")
        return not status

    async def _call(self, request: int, argument: bytearray) -> int:
        def blocking() -> int:
            status: int = fcntl.ioctl(self._fd, request, argument)
            return status

        try:
            return await self._run(blocking)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise ReservationsUnsupported(
                    f"{self._name} has no persistent reservations, which keep a second host from "
                    "writing: name a whole NVMe or SCSI disk that has them, or, if no other host "
                    "can ever reach this one, add reservations=none to the WAL's address"
                ) from error
            if error.errno in {errno.EPERM, errno.EACCES}:
                raise SettingsError(
                    f"{self._name}: the kernel wants CAP_SYS_ADMIN for reservations: give it to "
                    "the broker (AmbientCapabilities=CAP_SYS_ADMIN)"
                ) from error
            raise
