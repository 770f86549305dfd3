"""One life of a node: a process, from its start to its end.

The process writes its log where the supervisor's goes, without passing through it: a supervisor
that hangs stops no node. Standard output tells when the node is ready. When the supervisor dies,
the kernel tells its nodes to stop (see `lifeline`).
"""

import asyncio
import contextlib
import os
import re
import signal
import sys

from lakehead.broker.supervisor.lifeline import SUPERVISOR
from lakehead.broker.supervisor.placement import NodeCommand
from lakehead.storage.tasks import TaskScope

_READY = re.compile(r"lakehead is ready at (?P<address>\S+),")


class NodeProcess:
    """Made by `launch`. Its end is awaited by whoever launched it."""

    def __init__(self, process: asyncio.subprocess.Process, scope: TaskScope) -> None:
        self.pid: int = process.pid
        self._process = process
        self._address: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._is_silent = asyncio.Event()
        scope.spawn(self._read_output(), name=f"output of process {self.pid}")

    async def wait_ready(self) -> str | None:
        """Return where the node takes connections, host:port, once it does; None: it ended."""
        return await asyncio.shield(self._address)

    async def wait_ending(self) -> None:
        """Return when the process has closed its output: it has ended, or ends."""
        await self._is_silent.wait()

    async def wait_ended(self) -> int:
        """Return the exit status; negative: the signal that ended the process."""
        return await self._process.wait()

    def stop(self) -> None:
        """Ask the node to stop cleanly."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read_output(self) -> None:
        """Read to the end, so that the process is never made to wait."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            found = _READY.search(line.decode(errors="replace"))
            if found and not self._address.done():
                self._address.set_result(found["address"])
        if not self._address.done():
            self._address.set_result(None)
        self._is_silent.set()


async def launch(command: NodeCommand, scope: TaskScope) -> NodeProcess:
    """Start a process for a node. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lakehead", *command.arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, SUPERVISOR: str(os.getpid())},
        process_group=0,  # Ctrl-C is the supervisor's: it decides what the nodes are told
    )
    return NodeProcess(process, scope)
