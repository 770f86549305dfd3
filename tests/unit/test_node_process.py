"""A node's process as its supervisor sees it, by the output and the end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lakehead.broker.supervisor.service import NodeProcess, started
from lakehead.storage.tasks import TaskScope

LIMIT_S = 20
LEAVES_A_CHILD = """
import os, signal, subprocess, sys
child = [sys.executable, "-c", "import time; time.sleep(120)"]
pid = subprocess.Popen(child, start_new_session=True).pid
print(f"lakehead is ready at 127.0.0.1:{pid}, and more", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
LONG_LINE = """
print("x" * 300_000)
print("lakehead is ready at 127.0.0.1:9092, and more")
"""


@asynccontextmanager
async def life_of(code: str) -> AsyncIterator[NodeProcess]:
    crashes: list[BaseException] = []
    scope = TaskScope(lambda _, error: crashes.append(error))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield await started((sys.executable, "-c", code), os.environ, scope)
    finally:
        await scope.close()
    assert not crashes


async def test_the_end_is_noticed_while_a_process_of_the_node_has_its_output() -> None:
    async with life_of(LEAVES_A_CHILD) as life:
        address = await life.wait_ready()
        assert address is not None
        await life.wait_ending()
        assert await life.wait_ended() == -signal.SIGKILL
        os.kill(int(address.rpartition(":")[2]), signal.SIGKILL)


async def test_a_long_line_does_not_end_the_supervisor() -> None:
    async with life_of(LONG_LINE) as life:
        assert await life.wait_ready() == "127.0.0.1:9092"
        await life.wait_ending()
        assert await life.wait_ended() == 0
