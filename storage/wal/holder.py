"""The holder of a slice: the process that a recovering node has to end before it may read.

A lock does not name its owner (`F_OFD_GETLK` gives -1 for the pid), so the holder writes its
identity into a sector of the slice, right after it got the lock. The identity is the pid with the
start time of the process, the machine's boot id and the pid namespace: together they are never used
twice, so that an unrelated process that got the same pid is not ended. Layout of the sector,
integers big-endian::

    0   magic `LKHDHOLD`            32  start time u64, clock ticks after boot (`proc(5)`, field 22)
    8   version u16 = 1             40  pid namespace u64, its inode
    10  host id length u16          48  boot id 16 bytes
    12  pid u32, 0: none            64  host id, UTF-8; after it:
    16  volume id 16 bytes              recovering node's id + 1 u64, its epoch u64; 0: none
                                        incarnation, 16 bytes, UTF-8, zero-padded
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lakehead.storage.errors import StorageError
from lakehead.storage.wal.block_format import FORMAT_VERSION, is_sealed, seal

_MAGIC = b"LKHDHOLD"
_HOLDER = struct.Struct(">8sHHI16sQQ16s")
_TAKER = struct.Struct(">QQ16s")
_START_TIME_FIELD = 22  # of proc(5), counted from 1; the name in field 2 may hold blanks
NO_BOOT = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process, named so that no other one ever has the same name. `pid` 0 is no process.

    `taker` is the node id and epoch of a node that holds the slice of another, to recover it;
    `incarnation` the start of the node itself, as it registers it, if it holds its own.
    """

    pid: int
    start_time: int = 0
    pid_namespace: int = 0
    boot_id: bytes = NO_BOOT
    host_id: str = ""
    taker: tuple[int, int] | None = None
    incarnation: str = ""

    @property
    def name(self) -> str:
        """The process alone, as text: boot id, pid namespace, pid and start time, hexadecimal."""
        return f"{self.boot_id.hex()}-{self.pid_namespace:x}-{self.pid:x}-{self.start_time:x}"

    @classmethod
    def named(cls, name: str) -> Holder:
        """Read a `name`. Raises ValueError."""
        boot_id, namespace, pid, start_time = name.split("-")
        return cls(
            pid=int(pid, 16),
            start_time=int(start_time, 16),
            pid_namespace=int(namespace, 16),
            boot_id=bytes.fromhex(boot_id),
        )

    def encode(self, volume_id: bytes) -> bytes:
        """Return the sector."""
        host = self.host_id.encode()
        fixed = _HOLDER.pack(
            _MAGIC,
            FORMAT_VERSION,
            len(host),
            self.pid,
            volume_id,
            self.start_time,
            self.pid_namespace,
            self.boot_id,
        )
        taker = (0, 0) if self.taker is None else (self.taker[0] + 1, self.taker[1])
        return seal(fixed + host + _TAKER.pack(*taker, self.incarnation.encode()))

    @classmethod
    def decode(cls, sector: memoryview, volume_id: bytes) -> Holder | None:
        """Read a sector. None: it says nothing about this volume. Raises UnsupportedFormat."""
        if not is_sealed(sector, _MAGIC, "WAL slice holder"):
            return None
        fields = _HOLDER.unpack_from(sector)
        _, _, host_length, pid, written_for, start_time, namespace, boot_id = fields
        if written_for != volume_id:
            return None
        host_end = _HOLDER.size + host_length
        taker_after, taker_epoch, incarnation = _TAKER.unpack_from(sector, host_end)
        return cls(
            pid=pid,
            start_time=start_time,
            pid_namespace=namespace,
            boot_id=boot_id,
            host_id=bytes(sector[_HOLDER.size : host_end]).decode(),
            taker=(taker_after - 1, taker_epoch) if taker_after else None,
            incarnation=incarnation.rstrip(b"\0").decode(),
        )


NO_HOLDER = Holder(pid=0)


class Processes(Protocol):
    """The processes of this host."""

    def current(self) -> Holder:
        """Return the name of the calling process."""

    def kill(self, holder: Holder) -> bool:
        """End a process at once. False: it is gone already, or another boot's.

        Raises StorageError where it cannot be ended from here.
        """


class HostProcesses:
    """The real ones, by `/proc` and pidfd (Linux 5.3)."""

    def current(self) -> Holder:
        """Return the name of this process. Reads four small files of `/proc`."""
        return Holder(
            pid=os.getpid(),
            start_time=_start_time(os.getpid()) or 0,
            pid_namespace=_pid_namespace(),
            boot_id=_boot_id(),
        )

    def kill(self, holder: Holder) -> bool:
        """Send SIGKILL, which also ends a stopped process; see Processes."""
        if holder.pid == 0 or holder.boot_id != _boot_id():
            return False
        if holder.pid_namespace != _pid_namespace():
            raise StorageError(
                f"process {holder.pid} of another container writes to the WAL, and cannot be ended "
                "from here: stop it, or run the nodes of a host in one pid namespace"
            )
        if holder.pid == os.getpid():
            raise StorageError("this process writes to the WAL itself")
        try:
            pidfd = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor pins the process, so what is checked now is what is killed then.
            if _start_time(holder.pid) != holder.start_time:
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise StorageError(
                f"process {holder.pid} writes to the WAL and may not be ended by this user: "
                "run the nodes of a host as one user"
            ) from error
        finally:
            os.close(pidfd)
        return True


def is_running(name: str) -> bool | None:
    """Return true if the process of a `Holder.name` runs; None: that cannot be known from this host
    and container.
    """
    try:
        holder = Holder.named(name)
    except ValueError:
        return None
    if holder.boot_id != _boot_id() or holder.pid_namespace != _pid_namespace():
        return None
    return _start_time(holder.pid) == holder.start_time


def is_ending(holder: Holder) -> bool:
    """Return true if a process of this host and container has been ended, and the kernel still has
    it: a zombie whose other threads live, or one that SIGKILL waits for (`proc(5)`: State, SigPnd).
    """
    if holder.pid == 0 or is_running(holder.name) is not True:
        return False
    try:
        lines = Path(f"/proc/{holder.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    status = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    is_killed = int(status.get("SigPnd", "0"), 16) >> (signal.SIGKILL - 1) & 1
    return bool(is_killed) or status.get("State", "").startswith("Z")


def host_name() -> str:
    """Return the identity of this host: its machine id, else its host name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    return int(after_name[_START_TIME_FIELD - 3])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _boot_id() -> bytes:
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
