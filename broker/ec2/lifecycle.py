"""Report to an instance's auto-scaling group: in service, may be terminated, unhealthy.

A group with lifecycle hooks waits for these words before it counts an instance as its own, and
before it ends one; or for the hook's time to run out
(https://docs.aws.amazon.com/autoscaling/ec2/userguide/completing-lifecycle-hooks.html). EC2's own
checks see a machine that runs, not nodes that do not
(https://docs.aws.amazon.com/autoscaling/ec2/userguide/set-up-custom-health-checks.html).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from lakehead.storage.aws.client import AwsClient, AwsRefused, AwsUnanswered
from lakehead.storage.aws.instance import Instance, instance_metadata
from lakehead.storage.errors import SettingsError

GROUP_TAG = "lakehead:group"
SERVING_HOOK, ENDING_HOOK = "lakehead-serving", "lakehead-ending"
"""Names of the hooks, as the group was made with them."""
_NOTHING_WAITS = "ValidationError"
"""The group does not wait for this word: it has it, or its time has run out."""
_FINAL = {_NOTHING_WAITS, "AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
"""A repeated request gets these again. Others pass: a token that has expired is replaced."""
_log = structlog.get_logger("broker.lifecycle")


class ScalingGroups(Protocol):
    """The calls. They raise AwsRefused and AwsUnanswered."""

    async def complete(self, group: str, hook: str, instance_id: str) -> None:
        """Report to a group that a hook's work on an instance is done. A second report is
        refused.
        """

    async def set_unhealthy(self, instance_id: str) -> None:
        """Have an instance replaced by its group."""


class Boto3ScalingGroups:
    """EC2 Auto Scaling by boto3."""

    def __init__(self, region: str) -> None:
        self._client = AwsClient("autoscaling", region)

    async def complete(self, group: str, hook: str, instance_id: str) -> None:
        """See ScalingGroups."""
        await self._client.call(
            lambda client: client.complete_lifecycle_action(
                AutoScalingGroupName=group,
                LifecycleHookName=hook,
                InstanceId=instance_id,
                LifecycleActionResult="CONTINUE",
            )
        )

    async def set_unhealthy(self, instance_id: str) -> None:
        """See ScalingGroups."""
        await self._client.call(
            lambda client: client.set_instance_health(
                InstanceId=instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=True
            )
        )


class Lifecycle:
    """This instance's in its group, which its tag `lakehead:group` names."""

    def __init__(
        self,
        metadata: Callable[[], Awaitable[Instance]],
        groups: Callable[[str], ScalingGroups],
    ) -> None:
        self._metadata = metadata
        self._groups = groups
        self._known: tuple[Instance, ScalingGroups] | None = None
        self._trouble = ""

    async def check(self) -> None:
        """Make sure that there is a group. Raises SettingsError."""
        _group((await self._opened())[0])

    async def complete(self, hook: str) -> bool:
        """Report to the group that a hook's work is done. False: the report may be lost,
        repeat it.
        """
        return await self._say(
            hook, lambda group, groups, instance_id: groups.complete(group, hook, instance_id)
        )

    async def report_unhealthy(self) -> bool:
        """Have the group replace this instance. False: the request may be lost, repeat it."""
        return await self._say(
            "unhealthy", lambda _, groups, instance_id: groups.set_unhealthy(instance_id)
        )

    async def _say(
        self, word: str, call: Callable[[str, ScalingGroups, str], Awaitable[None]]
    ) -> bool:
        try:
            instance, groups = await self._opened()
            group = _group(instance)
            await call(group, groups, instance.instance_id)
        except (AwsRefused, AwsUnanswered, SettingsError) as error:
            if isinstance(error, AwsRefused) and error.code in _FINAL:
                # A policy's word is final too: the group goes on when the hook's time is up.
                log = _log.info if error.code == _NOTHING_WAITS else _log.error
                log("lifecycle_refused", word=word, reason=str(error))
                return True
            if str(error) != self._trouble:
                _log.warning("lifecycle_report_failed", word=word, reason=str(error))
            self._trouble = str(error)
            return False
        _log.info("lifecycle_reported", group=group, word=word)
        return True

    async def _opened(self) -> tuple[Instance, ScalingGroups]:
        if self._known is None:
            instance = await self._metadata()
            self._known = instance, self._groups(instance.region)
        return self._known


def machine_lifecycle() -> Lifecycle:
    """Return the lifecycle of the machine that this runs on. Makes no request yet."""
    return Lifecycle(instance_metadata().instance, Boto3ScalingGroups)


def _group(instance: Instance) -> str:
    group = (instance.tags or {}).get(GROUP_TAG, "")
    if not group:
        raise SettingsError(
            f"{instance.instance_id} shows no tag {GROUP_TAG} in its metadata, which names its "
            "auto-scaling group: have the group set it, and turn tags in metadata on"
        )
    return group
