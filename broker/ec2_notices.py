"""What EC2 announces to its instance: that it will be ended, or may be. Its nodes leave before.

A spot instance is told two minutes ahead of its end, and often earlier that its chances are bad
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html). The
nodes then stop as they do on SIGTERM: others lead what they led, everything is uploaded. The
process stays until it is told to end, or whoever keeps it running would start it again at once.

An instance of an auto-scaling group is told when the group ends it, to be smaller, to replace it,
or since its chances are bad; so there a recommendation is the group's business. The group waits
until it hears that the nodes have stopped, and at the start until they serve. A machine that cannot
keep its nodes running says so, and is replaced.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from lakehead.storage.aws.instance import Instance, MetadataUnanswered, Notice
from lakehead.storage.aws.lifecycle import ENDING_HOOK, SERVING_HOOK, Lifecycle, machine_lifecycle
from lakehead.storage.aws.volumes import instance_metadata
from lakehead.storage.errors import SettingsError

POLL_S = 3.0
"""AWS advises five seconds; of two minutes, every one counts."""
_KINDS = ("interruption", "rebalance", "scaling")
_log = structlog.get_logger("broker.ec2")


class Announcements(Protocol):
    """The metadata service of an instance; `lakehead.storage.aws.instance.InstanceMetadata`."""

    async def instance(self) -> Instance:
        """Return who this machine is. Raises SettingsError where it is not on EC2."""

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
            raise SettingsError(f"ec2.notices: {kinds!r} is none of {', '.join(_KINDS)}")
        self.notice: Notice | None = None
        """What was announced."""
        self._is_unhealthy = False
        self._kinds = kinds
        self._metadata = metadata
        self._lifecycle = (lifecycle or machine_lifecycle()) if kinds == "scaling" else None

    async def check(self) -> None:
        """Make sure that notices can come. Raises SettingsError where this is not EC2."""
        if self._kinds:
            self._metadata = self._metadata or instance_metadata()
            await self._metadata.instance()
        if self._lifecycle:
            await self._lifecycle.check()

    async def tell_serving(self) -> None:
        """Tell the auto-scaling group that the nodes serve. Returns when it knows."""
        await self._tell(SERVING_HOOK, asyncio.Event())

    async def watch(self, stop: asyncio.Event) -> None:
        """Set `stop` when a notice has come. Returns then, or at once if none is watched for."""
        if not self._kinds:
            return
        metadata = self._metadata or instance_metadata()
        is_answered = True
        while self.notice is None:
            try:
                self.notice = await metadata.notice(
                    takes_rebalance=self._kinds == "rebalance",
                    takes_scaling=self._kinds == "scaling",
                )
                is_answered = True
            except MetadataUnanswered as error:
                if is_answered:
                    _log.warning("ec2_notices_unanswered", reason=str(error))
                is_answered = False
            if self.notice is None:
                await asyncio.sleep(POLL_S)
        _log.warning(
            "ec2_notice",
            kind=self.notice.kind,
            action=self.notice.action,
            when=self.notice.when,
            meaning="the nodes of this machine stop; the process waits to be ended",
        )
        stop.set()

    async def stay_until(self, signalled: asyncio.Event) -> None:
        """Wait for the process to be told to end, if it was a notice that stopped its nodes; tell
        the auto-scaling group that they have stopped.
        """
        if self.notice is not None:
            await self._tell(ENDING_HOOK, signalled)
            await signalled.wait()

    async def tell_unhealthy(self, reason: str) -> None:
        """Have the auto-scaling group replace this machine, which cannot keep its nodes running.
        Told once; the group then ends the machine, which `watch` sees.
        """
        if self._lifecycle is None or self._is_unhealthy:
            return
        self._is_unhealthy = True
        _log.error("host_unhealthy", reason=reason, meaning="its group replaces this machine")
        await self._repeat(self._lifecycle.tell_unhealthy, asyncio.Event())

    async def _tell(self, hook: str, given_up: asyncio.Event) -> None:
        if self._lifecycle is not None:
            await self._repeat(partial(self._lifecycle.tell, hook), given_up)

    @staticmethod
    async def _repeat(tell: Callable[[], Awaitable[bool]], given_up: asyncio.Event) -> None:
        """Tell the group, again and again while it may not know."""
        while not given_up.is_set() and not await tell():
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await given_up.wait()
