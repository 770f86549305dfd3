"""systemd hears from a process whose loop turns, and from no other."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from lakehead.broker.service_watchdog import feed_watchdog
from lakehead.storage.tasks import TaskScope


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_the_watchdog_is_fed_while_the_loop_turns(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@lakehead-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.setblocking(False)
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000"}
        environment["WATCHDOG_PID"] = str(os.getpid())
        scope = TaskScope(lambda name, error: None)
        scope.spawn(feed_watchdog(environment), name="feed")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            assert [await loop.sock_recv(systemd, 100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
        await scope.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/run/x"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "often"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"},
    ],
)
async def test_it_is_left_alone_where_nothing_waits_for_this_process(
    environment: dict[str, str],
) -> None:
    async with asyncio.timeout(30):
        await feed_watchdog(environment)
