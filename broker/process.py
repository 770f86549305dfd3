"""A node as a process of its own: its memory, its log, its signals, its end."""

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

import structlog
import uvloop

from lakehead.broker.ec2.notices import Ec2Events, Ec2Notices, drain_by_command
from lakehead.broker.node import NodeFailed, start_node
from lakehead.broker.observability.event_log import configure_logs
from lakehead.broker.process_end import ForcedEnd, StopSignals
from lakehead.broker.service_watchdog import feed_watchdog
from lakehead.broker.settings import Settings
from lakehead.storage.errors import CopyPromoted
from lakehead.storage.plain_text import address_text
from lakehead.storage.tasks import TaskScope, log_failure

_log = structlog.get_logger("broker.process")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_TOP_PAD = 16 << 20
_MMAP_THRESHOLD = 4 << 20
_TRIM_THRESHOLD = 256 << 20


GC_THRESHOLDS = (2_000, 50_000, 1_000)
"""The collector looks at each new object once, two thousand at a time, while the processor's cache
has them: 0.1 ms. Small batches that stay in the cache are objects, and there may be a million of
them: looking again at a hundred thousand took 15 ms and more. It does that after a hundred million.
"""


def tune_memory() -> None:
    """Tune the process for its work: frames of records come and go in a long, steady stream.

    The garbage collector skips what is there, imported objects, and runs seldom: nothing on the hot
    path makes cycles. It does not look for garbage first: that takes 50 ms, and finds next to none.
    Freed frames stay with the process for the next ones; glibc would return each to the
    system and fault it in again.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(0.0005)
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TOP_PAD, _TOP_PAD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def run(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT; `on_ready` gets its address, host:port.

    The first signal stops it cleanly. A second one, a second or more later, ends the process at
    once, as if it were killed: all that it acknowledged is in the write-ahead log. So does a log on
    a device that does not respond, if the clean stop is not done soon.

    Raises SettingsError and the errors of storage at the start, NodeFailed when it cannot go on.
    """
    configure_logs(settings.log_level, settings.node_id, log_format=settings.log_format)
    tune_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: Settings, on_ready: Callable[[str], None]) -> None:
    beside = TaskScope(log_failure)
    beside.spawn_loop(partial(feed_watchdog, os.environ), name="feed the watchdog")
    try:
        await _serve_watched(settings, on_ready)
    finally:
        await beside.close()


async def _serve_watched(settings: Settings, on_ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop, signalled = asyncio.Event(), asyncio.Event()
    end = StopSignals(loop.time, signalled, stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.arrived, number)
    notices = Ec2Notices(settings.ec2_notices)
    await notices.check()
    try:
        error = await _run_node(settings, on_ready, stop, notices)
    except CopyPromoted as promoted:
        error = promoted
    if isinstance(error, CopyPromoted):
        _log.info("standby_promoted", node_id=settings.node_id, reason=str(error))
        full = dataclasses.replace(settings, standby=False)
        error = None if stop.is_set() else await _run_node(full, on_ready, stop, notices)
    if error is not None:
        raise NodeFailed(f"the node stopped: {error}") from error
    await notices.stay_until(signalled)


async def _run_node(
    settings: Settings, on_ready: Callable[[str], None], stop: asyncio.Event, notices: Ec2Notices
) -> Exception | None:
    """Run a node until `stop` is set, or it cannot go on; return the reason then."""
    node = await start_node(settings, on_stuck=ForcedEnd().begin)
    node.scope.spawn_loop(partial(notices.watch, stop), name="watch for notices of EC2")
    events = Ec2Events(
        is_on=bool(settings.ec2_notices),
        drain=drain_by_command(settings.store_address, [settings.node_id]),
        clock=node.clock,
    )
    node.scope.spawn_loop(events.watch, name="watch for events of EC2")
    failed = node.scope.spawn(node.wait_failed(), name="wait for failure")
    on_ready(address_text(node.advertised_host, node.advertised_port))
    node.scope.spawn_apart(notices.report_serving(), name="report to the auto-scaling group")
    stopping = node.scope.spawn(stop.wait(), name="wait for a signal", is_awaited=True)
    await asyncio.wait([failed, stopping], return_when=asyncio.FIRST_COMPLETED)
    error = failed.result() if failed.done() else None
    await node.close()
    return error
