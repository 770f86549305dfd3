"""Notices of EC2 to its instance, that it will be ended or may be. Its nodes leave before.

A spot instance gets a notice two minutes ahead of its end, and often an earlier rebalance
recommendation
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html). The
nodes then stop as they do on SIGTERM: they hand their leaderships over and upload everything. The
process stays until it is stopped, since a service manager would start it again at once.

An instance of an auto-scaling group gets a notice when the group ends it, to be smaller, to replace
it, or on a recommendation, which is the group's business there. The group waits for the report that
the nodes have stopped, and at the start for the report that they serve. A machine that cannot keep
its nodes running reports that, and is replaced.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Protocol, TypeAlias

import structlog

from lakehead.broker.ec2.lifecycle import ENDING_HOOK, SERVING_HOOK, Lifecycle, machine_lifecycle
from lakehead.storage.aws.instance import (
    Instance,
    InstanceMetadata,
    MetadataUnanswered,
    instance_metadata,
    parsed_json,
    parsed_object,
)
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError

NOTICE_POLL_S = 3.0
"""AWS advises five seconds; of two minutes, every one counts."""
_KINDS = ("interruption", "rebalance", "scaling")
_INTERRUPTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
_EVENTS = "/latest/meta-data/events/maintenance/scheduled"
_LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
_ENDS = {"Terminated", "Warmed:Terminated"}
_log = structlog.get_logger("broker.ec2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A coming event, as EC2 announces it. `when` is EC2's own text, ISO 8601."""

    kind: str
    """`interruption`, which follows in two minutes, `rebalance`, which says it may, or `scaling`:
    the auto-scaling group ends this instance, and waits for permission.
    """
    action: str
    """`terminate`, `stop`, `hibernate`; empty with a recommendation."""
    when: str
    """Empty where it is not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledEvent:
    """Maintenance that EC2 has scheduled. Times are its own texts, `21 Jan 2019 09:00:43 GMT`."""

    event_id: str
    code: str
    """`instance-reboot`, `system-reboot`, `system-maintenance`, `instance-retirement` or
    `instance-stop`.
    """
    description: str
    not_before: str
    not_after: str
    """Empty where it is not said."""


class InstanceEvents:
    """The events that the metadata service of an instance announces for it."""

    def __init__(self, metadata: InstanceMetadata) -> None:
        self._metadata = metadata

    async def instance(self) -> Instance:
        """Return the identity of this machine. Raises SettingsError outside EC2."""
        return await self._metadata.instance()

    async def notice(
        self, *, takes_rebalance: bool = False, takes_scaling: bool = False
    ) -> Notice | None:
        """Return what is coming, None: nothing that is known. Raises MetadataUnanswered."""
        text = await self._metadata.text(_INTERRUPTION)
        if text is not None:
            notice = parsed_object(text, _INTERRUPTION)
            return Notice(
                kind="interruption", action=notice.get("action", ""), when=notice.get("time", "")
            )
        if takes_scaling and (await self._metadata.text(_LIFECYCLE) or "").strip() in _ENDS:
            return Notice(kind="scaling", action="terminate", when="")
        text = await self._metadata.text(_REBALANCE) if takes_rebalance else None
        if text is not None:
            notice = parsed_object(text, _REBALANCE)
            return Notice(kind="rebalance", action="", when=notice.get("noticeTime", ""))
        return None

    async def scheduled_events(self) -> tuple[ScheduledEvent, ...]:
        """Return the maintenance that is scheduled and not over. Raises MetadataUnanswered."""
        found = parsed_json(await self._metadata.text(_EVENTS) or "[]")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise MetadataUnanswered(f"{_EVENTS} is malformed")
        return tuple(
            ScheduledEvent(
                event_id=str(one.get("EventId", "")),
                code=str(one.get("Code", "")),
                description=str(one.get("Description", "")),
                not_before=str(one.get("NotBefore", "")),
                not_after=str(one.get("NotAfter", "")),
            )
            for one in found
            if one.get("State", "active") == "active"
        )


def machine_events() -> InstanceEvents:
    """Return the events of the machine that this runs on. Makes no request yet."""
    return InstanceEvents(instance_metadata())


class Announcements(Protocol):
    """The metadata service of an instance; `InstanceEvents`."""

    async def instance(self) -> Instance:
        """Return the identity of this machine. Raises SettingsError outside EC2."""

    async def notice(
        self, *, takes_rebalance: bool = False, takes_scaling: bool = False
    ) -> Notice | None:
        """Return what is coming. Raises MetadataUnanswered."""


class Ec2Notices:
    """Watches for what the setting `ec2.notices` names; empty: for nothing.

    Raises SettingsError for another value.
    """

    def __init__(
        self,
        kinds: str,
        metadata: Announcements | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        if kinds and kinds not in _KINDS:
            raise SettingsError(f"ec2.notices: {kinds!r} is not one of {', '.join(_KINDS)}")
        self.notice: Notice | None = None
        """The events that were announced."""
        self._is_unhealthy = False
        self._kinds = kinds
        self._metadata = metadata
        self._lifecycle = (lifecycle or machine_lifecycle()) if kinds == "scaling" else None

    async def check(self) -> None:
        """Make sure that notices can come. Raises SettingsError where this is not EC2."""
        if self._kinds:
            self._metadata = self._metadata or machine_events()
            await self._metadata.instance()
        if self._lifecycle:
            await self._lifecycle.check()

    async def report_serving(self) -> None:
        """Report to the auto-scaling group that the nodes serve; return when it has the report."""
        await self._complete(SERVING_HOOK, asyncio.Event())

    async def watch(self, stop: asyncio.Event) -> None:
        """Set `stop` when a notice has come. Returns then, or at once if none is watched for."""
        if not self._kinds:
            return
        metadata = self._metadata or machine_events()
        is_responding = True
        while self.notice is None:
            try:
                self.notice = await metadata.notice(
                    takes_rebalance=self._kinds == "rebalance",
                    takes_scaling=self._kinds == "scaling",
                )
                is_responding = True
            except MetadataUnanswered as error:
                if is_responding:
                    _log.warning("ec2_notices_unavailable", reason=str(error))
                is_responding = False
            if self.notice is None:
                await asyncio.sleep(NOTICE_POLL_S)
        _log.warning(
            "ec2_notice",
            kind=self.notice.kind,
            action=self.notice.action,
            when=self.notice.when,
            meaning="the nodes of this machine stop; the process waits to be ended",
        )
        stop.set()

    async def stay_until(self, signalled: asyncio.Event) -> None:
        """Wait until the process is stopped, if a notice stopped its nodes; report to the
        auto-scaling group that they have stopped.
        """
        if self.notice is not None:
            await self._complete(ENDING_HOOK, signalled)
            await signalled.wait()

    async def report_unhealthy(self, reason: str) -> None:
        """Have the auto-scaling group replace this machine, which cannot keep its nodes running.
        Reported once; the group then ends the machine, which `watch` sees.
        """
        if self._lifecycle is None or self._is_unhealthy:
            return
        self._is_unhealthy = True
        _log.error("host_unhealthy", reason=reason, meaning="its group replaces this machine")
        await self._repeat(self._lifecycle.report_unhealthy, asyncio.Event())

    async def _complete(self, hook: str, given_up: asyncio.Event) -> None:
        if self._lifecycle is not None:
            await self._repeat(partial(self._lifecycle.complete, hook), given_up)

    @staticmethod
    async def _repeat(call: Callable[[], Awaitable[bool]], given_up: asyncio.Event) -> None:
        """Send a report to the group until it has arrived."""
        while not given_up.is_set() and not await call():
            with suppress(TimeoutError):
                async with asyncio.timeout(NOTICE_POLL_S):
                    await given_up.wait()


EVENT_POLL_S = 30.0
LEAD_S = 600.0
"""Nodes are drained so long before the window, which takes seconds: others drain then, too."""
_DRAIN_TIMEOUT_S = 300.0

Drain: TypeAlias = Callable[[bool], Awaitable[str]]
"""Drains the nodes of this machine (True), or ends that; returns why it could not, or nothing."""


class Calendar(Protocol):
    """The metadata service of an instance; `InstanceEvents`."""

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
        """Look every EVENT_POLL_S, for good; return at once where it is turned off."""
        calendar = self._calendar or (machine_events() if self._is_on else None)
        while self._is_on and calendar is not None:
            try:
                await self._look(await calendar.scheduled_events())
            except MetadataUnanswered:
                pass  # known as `ec2_notices_unavailable`; what was begun goes on
            await asyncio.sleep(EVENT_POLL_S)

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
            return "the store does not respond"
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
