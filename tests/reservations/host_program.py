"""What runs on a machine of the rig: the project's WAL on its disk, driven over a serial line.

It reads one JSON object per line and answers each with one. While it writes, it also says each
record that was released, and the error that ended the log: these lines have an `event`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from lakehead.storage.errors import LakeheadError
from lakehead.storage.wal import BlockWal, open_wal, take_wal
from lakehead.storage.wal.device import IoThreads, aligned_buffer
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation_ioctl import IoctlReservation


def say(**words: Any) -> None:
    """Say one line."""
    os.write(1, json.dumps(words).encode() + b"\n")


class Writer:
    """Appends numbered records to a log and says which are released, until the log fails.

    Records are `TAG:number`; some are in flight at any time.
    """

    def __init__(self, wal: BlockWal, tag: str, size: int) -> None:
        self._wal = wal
        self._tag = tag
        self._size = size
        self._ends: dict[int, int] = {}
        self._said = -1
        self._moved = asyncio.Event()
        self.error: Exception | None = None

    def released(self, position: int) -> None:
        """Say the newest record that is released now; see WalListener."""
        done = [number for number, end in self._ends.items() if end <= position]
        for number in done:
            del self._ends[number]
        if done:
            self._said = max(done)
            say(event="released", number=self._said)
        self._moved.set()

    def failed(self, error: Exception) -> None:
        """Say why it ended; see WalListener."""
        self.error = error
        say(event="failed", number=self._said, kind=type(error).__name__, message=str(error))
        self._moved.set()

    async def write(self) -> None:
        """Append without end."""
        number = 0
        while self.error is None:
            payload = f"{self._tag}:{number}:".encode().ljust(self._size, b".")
            try:
                self._ends[number] = self._wal.append(1, 1, number, 1, payload)
            except LakeheadError as error:
                say(event="refused", number=number, kind=type(error).__name__)
                return
            number += 1
            while len(self._ends) >= 8 and self.error is None:
                self._moved.clear()
                await self._moved.wait()
            await asyncio.sleep(0)


class Program:
    """The commands: each method whose name does not begin with `_`."""

    def __init__(self) -> None:
        self._wal: BlockWal | None = None
        self._writing: asyncio.Task[None] | None = None
        self._threads = IoThreads(1)
        self._servers: list[asyncio.Server] = []

    async def open(self, *, disk: str, host: str, other_hosts: list[str] | None = None) -> Any:
        """Open node 0's log as the host; with `other_hosts`, as a node that starts does."""
        claim = None if other_hosts is None else Claim(tuple(other_hosts), frozenset())
        wal = await open_wal(
            f"block:{disk}?format=yes",
            rng=random.Random(),
            host_id=host,
            cluster_id="c",
            claim=claim,
        )
        assert isinstance(wal, BlockWal)
        return await self._recovered(wal)

    async def take(self, *, disk: str, host: str, other_hosts: list[str]) -> Any:
        """Take node 0's log over."""
        wal = await take_wal(
            f"block:{disk}", node_id=0, host_id=host, cluster_id="c", other_hosts=other_hosts
        )
        return await self._recovered(wal)

    async def _recovered(self, wal: BlockWal) -> Any:
        """Read the log that is open now; say which records of each tag it holds."""
        say(event="opened")
        self._wal = wal
        numbers: dict[str, list[int]] = {}
        digest = hashlib.sha256()
        async for record in wal.recover():
            tag, number, _ = bytes(record.payload).decode().split(":")
            numbers.setdefault(tag, []).append(int(number))
            digest.update(record.payload)
        return {
            "records": {tag: [found[0], found[-1], len(found)] for tag, found in numbers.items()},
            "digest": digest.hexdigest(),
        }

    async def write(self, *, epoch: int, tag: str, size: int = 400) -> Any:
        """Begin an epoch and write in the background."""
        assert self._wal is not None
        writer = Writer(self._wal, tag, size)
        await self._wal.start(epoch=epoch, listener=writer)
        self._writing = asyncio.create_task(writer.write())
        return {}

    async def close(self) -> Any:
        """Close the log; its error is what the test looks at elsewhere."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        if self._wal is not None:
            await self._wal.close()
        self._wal = self._writing = None
        return {}

    async def sector(self, *, disk: str, at: int) -> Any:
        """Try to write one sector; 0, or the error number."""
        fd = os.open(disk, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        try:
            os.pwrite(fd, aligned_buffer(4096), at)
        except OSError as error:
            return {"errno": error.errno}
        finally:
            os.close(fd)
        return {"errno": 0}

    async def reserve(self, *, disk: str, call: str, keys: list[int], aborts: bool = True) -> Any:
        """Make one call of a Reservation; say what it returned or raised."""
        reservation = IoctlReservation.open(Path(disk), self._threads.run, aborts=aborts)
        try:
            return {"result": await getattr(reservation, call)(*keys)}
        except (OSError, LakeheadError) as error:
            return {"result": f"{type(error).__name__}: {error}"}
        finally:
            await reservation.close()

    async def node(self, *, flags: list[str], environment: dict[str, str]) -> Any:
        """Start a node of a cluster; it lives as long as the machine, and logs to its console."""
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lakehead", "start", *flags),
            env=os.environ | environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        return {}

    async def forward(self, *, ports: list[int], address: str) -> Any:
        """Have ports of this machine's loopback lead to those of an address."""

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass  # the other direction learns of it, too
            finally:
                writer.close()

        def accept(port: int) -> Callable[..., Awaitable[None]]:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    there, back = await asyncio.open_connection(address, port)
                except OSError:
                    writer.close()
                    return
                await asyncio.gather(relay(reader, back), relay(there, writer))

            return accepted

        for port in ports:
            self._servers.append(await asyncio.start_server(accept(port), "127.0.0.1", port))
        return {}

    async def wipe(self, *, disk: str) -> Any:
        """Free the disk and forget what is on it."""
        await self.reserve(disk=disk, call="register", keys=[1])
        await self.reserve(disk=disk, call="clear", keys=[1])
        fd = os.open(disk, os.O_RDWR)
        try:
            os.pwrite(fd, bytes(2 << 20), 0)
            os.pwrite(fd, bytes(1 << 20), os.lseek(fd, 0, os.SEEK_END) - (1 << 20))
            os.fsync(fd)
        finally:
            os.close(fd)
        return {}


async def main() -> None:
    """Answer until the line ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    program, loop = Program(), asyncio.get_running_loop()
    say(ready=True, kernel=os.uname().release)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            answer = await getattr(program, command.pop("do"))(**command)
        except (LakeheadError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(**answer)


if __name__ == "__main__":
    asyncio.run(main())
