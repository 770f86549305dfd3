"""Maintenance that EC2 has scheduled for its instance: the nodes lead nothing while it is due.

A reboot, a stop, the end of the hardware or work on the network is announced days ahead, and it is
the only notice that an on-demand instance is given
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html).
Its window may be hours long, so the nodes do not stop: they are drained, other machines lead, and
whenever it comes it finds nothing that clients wait for. A machine that started again leads again
by itself, as a drain ends with a start; where nothing came, the drain is taken back. Where no
other machine could lead, nothing is drained: to lead until the reboot is better than not to.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Protocol, TypeAlias

import structlog

from lakehead.storage.aws.instance import MetadataUnanswered, ScheduledEvent
from lakehead.storage.aws.volumes import instance_metadata
from lakehead.storage.clock import Clock

POLL_S = 30.0
LEAD_S = 600.0
"""Nodes are drained so long before the window, which takes seconds: others drain then, too."""
_DRAIN_TIMEOUT_S = 300.0
_log = structlog.get_logger("broker.ec2")

Drain: TypeAlias = Callable[[bool], Awaitable[str]]
"""Drains the nodes of this machine (True), or ends that; returns why it could not, or nothing."""


class Calendar(Protocol):
    """The metadata service of an instance; `lakehead.storage.aws.instance.InstanceMetadata`."""

    async def scheduled_events(self) -> tuple[ScheduledEvent, ...]:
        """Return what is scheduled and not over. Raises MetadataUnanswered."""


class Ec2Events:
    """Drains a machine's nodes while an event is due. Turned off, it watches for nothing."""

    def __init__(
        self, *, is_on: bool, drain: Drain, clock: Clock, calendar: Calendar | None = None
    ) -> None:
        self._is_on = is_on
        self._drain = drain
        self._clock = clock
        self._calendar = calendar
        self._announced: set[tuple[str, str]] = set()
        self._is_drained = False

    async def watch(self) -> None:
        """Look every POLL_S, for good; return at once where it is turned off."""
        calendar = self._calendar or (instance_metadata() if self._is_on else None)
        while self._is_on and calendar is not None:
            try:
                await self._look(await calendar.scheduled_events())
            except MetadataUnanswered:
                pass  # known as `ec2_notices_unanswered`; what was begun goes on
            await asyncio.sleep(POLL_S)

    async def _look(self, events: Sequence[ScheduledEvent]) -> None:
        due = [event for event in events if self._is_due(event)]
        for event in events:
            self._announce(event, is_due=event in due)
        if due:
            # Again and again: a node that ended and started in between is not drained any more.
            why_not = await self._drain(True)
            if why_not and not self._is_drained:
                _log.warning("ec2_event_not_drained", reason=why_not)
            self._is_drained = self._is_drained or not why_not
        elif self._is_drained and not await self._drain(False):
            self._is_drained = False
            _log.info("ec2_event_over", meaning="the nodes of this machine lead again")

    def _is_due(self, event: ScheduledEvent) -> bool:
        begins = _time(event.not_before)
        return begins is None or begins.timestamp() - LEAD_S <= self._clock.now_ms() / 1000

    def _announce(self, event: ScheduledEvent, *, is_due: bool) -> None:
        """Log an event when it is new, when its time was changed, and when it is due."""
        key = (event.event_id, "due" if is_due else event.not_before)
        if key in self._announced:
            return
        self._announced.add(key)
        _log.warning(
            "ec2_event_due" if is_due else "ec2_event_scheduled",
            code=event.code,
            description=event.description,
            not_before=event.not_before,
            not_after=event.not_after,
            event_id=event.event_id,
        )


def drain_by_command(path: str, node_ids: Sequence[int]) -> Drain:
    """Return what drains nodes of the cluster at `path` by `lakehead drain`: all in one entry of
    the metadata, refused where no other node may lead.
    """

    async def drain(is_draining: bool) -> str:
        undo = () if is_draining else ("--undo",)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lakehead", "drain", *map(str, node_ids)),
            *(f"--path={path}", *undo),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                _, said = await process.communicate()
        except TimeoutError:
            return "the store does not answer"
        finally:
            if process.returncode is None:
                process.kill()
        return said.decode(errors="replace").strip() if process.returncode else ""

    return drain


def _time(text: str) -> datetime | None:
    """Return a time as EC2 writes it, `21 Jan 2019 09:00:43 GMT`; None: it cannot be read."""
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return None
