"""The supervisor as a process: its signals, its log, its end.

SIGTERM and SIGINT stop the nodes, all at once, and a second one kills them. A notice of EC2 stops
them as well; the supervisor stays after that until a signal comes. SIGHUP replaces them one after
the other; when it comes because the terminal has gone, it stops them.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lakehead.broker.ec2.notices import Ec2Events, Ec2Notices, drain_by_command
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.process_end import StopSignals
from lakehead.broker.service_watchdog import feed_watchdog
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.lifeline import SUPERVISOR
from lakehead.broker.supervisor.placement import NodeCommand, registry_command
from lakehead.broker.supervisor.supervisor import Life, SupervisedNode, Supervisor
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.tasks import TaskScope

REPORT_S = 10.0
"""The end waits so long for the auto-scaling group to hear that this machine is not healthy."""
STOP_GRACE_S = 5.0
"""A node may take so much longer than it gives the object store (shutdown.timeout.ms)."""
OUTPUT_S = 1.0
"""Output is read for so long after the end of its process."""
_READY = re.compile(r"lakehead is ready at (?P<address>\S+),")


class NodeProcess:
    """One life of a node as a process, made by `launch`; its caller awaits the end.

    The process writes its log to the supervisor's standard error, without passing through it: a
    supervisor that hangs stops no node. Standard output reports when the node is ready. When the
    supervisor dies, the kernel stops its nodes (see `lifeline`).
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        scope: TaskScope,
    ) -> None:
        self.pid: int = process.pid
        self._process = process
        self._output = output
        self._pipe = pipe
        self._address: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._is_silent = asyncio.Event()
        scope.spawn(self._read_output(), name=f"output of process {self.pid}")
        scope.spawn(self._notice_end(), name=f"end of process {self.pid}")

    async def wait_ready(self) -> str | None:
        """Return where the node takes connections, host:port, once it does; None: it ended."""
        return await asyncio.shield(self._address)

    async def wait_ending(self) -> None:
        """Return when the process has closed its output, and so ends, or has ended."""
        await self._is_silent.wait()

    async def wait_ended(self) -> int:
        """Return the exit status; negative: the signal that ended the process."""
        return await self._process.wait()

    def stop(self) -> None:
        """Request a clean stop of the node."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read_output(self) -> None:
        """Read to the end, so that the process is never made to wait."""
        while True:
            try:
                line = await self._output.readline()
            except ValueError:  # one that is longer than the reader takes, and is dropped
                continue
            if not line:
                break
            found = _READY.search(line.decode(errors="replace"))
            if found and not self._address.done():
                self._address.set_result(found["address"])
        self._ended()

    async def _notice_end(self) -> None:
        """Notice the end of the process also if one that it has started keeps its output open."""
        await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_S):
                await self._is_silent.wait()
        self._pipe.close()
        self._ended()

    def _ended(self) -> None:
        if not self._address.done():
            self._address.set_result(None)
        self._is_silent.set()


async def launch(command: NodeCommand, scope: TaskScope) -> NodeProcess:
    """Start a process for a node. Raises OSError."""
    arguments = (sys.executable, "-m", "lakehead", *command.arguments)
    return await started(arguments, {**os.environ, SUPERVISOR: str(os.getpid())}, scope)


async def started(
    arguments: Sequence[str], environment: Mapping[str, str], scope: TaskScope
) -> NodeProcess:
    """Start a process. Raises OSError.

    The pipe of its output is made here: with one of its own asyncio takes a process for running
    until each process that has the pipe has ended.
    """
    ours, its = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=its,
            env=environment,
            process_group=0,  # Ctrl-C is the supervisor's: it decides which signals the nodes get
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(its)
    output = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(output)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: protocol, os.fdopen(ours, "rb", buffering=0)
    )
    return NodeProcess(process, output, pipe, scope)


def run(
    commands: Sequence[NodeCommand],
    settings: Settings,
    *,
    on_ready: Callable[[str], None],
    on_registry: Callable[[str], None],
) -> None:
    """Run the nodes until SIGTERM or SIGINT; `on_ready` is given their addresses, by commas, and
    `on_registry` that of the schema registry beside them, if there is one.

    Raises NodeNotStarted, NodeNotStopped.
    """
    configure_logs(settings.log_level, log_format=settings.log_format)
    with asyncio.Runner() as runner:
        runner.run(_supervise(commands, settings, on_ready, on_registry))


async def _supervise(
    commands: Sequence[NodeCommand],
    settings: Settings,
    on_ready: Callable[[str], None],
    on_registry: Callable[[str], None],
) -> None:
    stop, signalled = asyncio.Event(), asyncio.Event()
    notices = Ec2Notices(settings.ec2_notices)
    await notices.check()
    crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def crashed(_: str, error: BaseException) -> None:
        if not crash.done():
            crash.set_exception(error)
        stop.set()

    scope = TaskScope(crashed)

    async def launch_here(command: NodeCommand) -> Life:
        return await launch(command, scope)

    reports: list[asyncio.Task[None]] = []

    def unhealthy(reason: str) -> None:
        reporting = notices.report_unhealthy(reason)
        reports.append(
            scope.spawn_apart(reporting, name="report trouble to the auto-scaling group")
        )

    scope.spawn_loop(partial(feed_watchdog, os.environ), name="feed the watchdog")
    stop_timeout_s = settings.shutdown_timeout_ms / 1000 + STOP_GRACE_S
    clock = SystemClock()
    supervisor = Supervisor(
        commands,
        launch_here,
        clock,
        scope,
        stop_timeout_s=stop_timeout_s,
        on_unhealthy=unhealthy,
    )
    registry: SupervisedNode | None = None
    end = StopSignals(clock.monotonic, signalled, stop, before_exit=supervisor.kill)
    _listen_to_signals(end, supervisor)
    scope.spawn(notices.watch(stop), name="watch for notices of EC2")
    try:
        starting = scope.spawn(supervisor.start(), name="start nodes", is_awaited=True)
        stopping = scope.spawn(stop.wait(), name="wait for a signal")
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            addresses = ",".join(starting.result())
            on_ready(addresses)
            scope.spawn(notices.report_serving(), name="report to the auto-scaling group")
            events = _events(settings, commands, clock)
            scope.spawn_loop(events.watch, name="watch for events of EC2")
            if settings.registry_port >= 0:
                command = registry_command(settings, addresses)
                registry = SupervisedNode(
                    command, launch_here, clock, stop_timeout_s=stop_timeout_s
                )
                _keep(registry, scope, on_registry)
            await stop.wait()
        if not crash.done():  # else the nodes stop when this process has ended
            if registry is not None:
                await registry.stop()
            await supervisor.stop()
            await notices.stay_until(signalled)
    finally:
        if reports:
            await asyncio.wait(reports, timeout=REPORT_S)
        await scope.close()
    if crash.done():
        crash.result()


def _events(settings: Settings, commands: Sequence[NodeCommand], clock: Clock) -> Ec2Events:
    ids = [command.node_id for command in commands if isinstance(command.node_id, int)]
    drain = drain_by_command(settings.store_address, ids)
    return Ec2Events(is_on=bool(settings.ec2_notices), drain=drain, clock=clock)


def _keep(registry: SupervisedNode, scope: TaskScope, on_registry: Callable[[str], None]) -> None:
    scope.spawn(registry.run(), name="keep the registry")
    scope.spawn(_report(registry, on_registry), name="report the registry")


async def _report(registry: SupervisedNode, on_registry: Callable[[str], None]) -> None:
    if await registry.wait_settled():
        on_registry(registry.address)


def _listen_to_signals(end: StopSignals, supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    had_terminal = sys.stderr.isatty()

    def hang_up() -> None:
        if had_terminal and not os.isatty(sys.stderr.fileno()):
            end.arrived(signal.SIGHUP)
        else:
            supervisor.restart_nowait()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.arrived, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
