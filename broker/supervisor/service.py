"""The supervisor as a process: its signals, its log, its end.

SIGTERM and SIGINT stop the nodes, all at once. SIGHUP replaces them one after the other; when it
comes because the terminal has gone, it stops them.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence

from broker.observability.event_log import configure_logs
from broker.settings import Settings
from broker.supervisor.node_process import launch
from broker.supervisor.placement import NodeCommand
from broker.supervisor.supervised_node import Life
from broker.supervisor.supervisor import Supervisor
from storage.clock import SystemClock
from storage.tasks import TaskScope

STOP_GRACE_S = 5.0
"""A node may take so much longer than it gives the object store (shutdown.timeout.ms)."""


def run(
    commands: Sequence[NodeCommand], settings: Settings, *, on_ready: Callable[[str], None]
) -> None:
    """Run the nodes until SIGTERM or SIGINT; `on_ready` is given their addresses, by commas.

    Raises NodeNotStarted, NodeNotStopped.
    """
    configure_logs(settings.log_level)
    with asyncio.Runner() as runner:
        runner.run(_supervise(commands, settings, on_ready))


async def _supervise(
    commands: Sequence[NodeCommand], settings: Settings, on_ready: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def crashed(_: str, error: BaseException) -> None:
        if not crash.done():
            crash.set_exception(error)
        stop.set()

    scope = TaskScope(crashed)

    async def launch_here(command: NodeCommand) -> Life:
        return await launch(command, scope)

    supervisor = Supervisor(
        commands,
        launch_here,
        SystemClock(),
        scope,
        stop_timeout_s=settings.shutdown_timeout_ms / 1000 + STOP_GRACE_S,
    )
    _listen_to_signals(stop, supervisor)
    try:
        starting = scope.spawn(supervisor.start(), name="start nodes", is_awaited=True)
        stopping = scope.spawn(stop.wait(), name="wait for a signal")
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            on_ready(",".join(starting.result()))
            await stop.wait()
        if not crash.done():  # else the nodes stop when this process has ended
            await supervisor.stop()
    finally:
        await scope.close()
    if crash.done():
        crash.result()


def _listen_to_signals(stop: asyncio.Event, supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    had_terminal = sys.stderr.isatty()

    def hang_up() -> None:
        if had_terminal and not os.isatty(sys.stderr.fileno()):
            stop.set()
        else:
            supervisor.restart_nowait()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
