"""A machine of an auto-scaling group says that it serves, leaves when told to, and says so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.broker.ec2.lifecycle import ENDING_HOOK, SERVING_HOOK, Lifecycle
from lakehead.broker.ec2.notices import Ec2Notices, Notice
from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from lakehead.storage.aws.instance import Instance, MetadataUnanswered
from lakehead.storage.errors import SettingsError
from tests.simulation.loop import simulate
from tests.support.aws_answers import ERROR, Answers, serve_answers
from tests.support.fake_imds import FakeImds, serve_imds
from tests.support.supervised import Supervised
from tests.support.waiting import wait_until

TAGS = {"lakehead:group": "lake"}
DONE = """<CompleteLifecycleActionResponse><CompleteLifecycleActionResult/>
</CompleteLifecycleActionResponse>"""


class Groups:
    """Unanswered a number of times, then refused or not."""

    def __init__(self, *, unanswered: int = 0, code: str = "") -> None:
        self.unanswered, self.code = unanswered, code
        self.told: list[tuple[str, str, str]] = []

    async def set_unhealthy(self, instance_id: str) -> None:
        await self.complete("", "unhealthy", instance_id)

    async def complete(self, group: str, hook: str, instance_id: str) -> None:
        self.told.append((group, hook, instance_id))
        if len(self.told) <= self.unanswered:
            raise AwsUnanswered("timeout")
        if self.code:
            raise AwsRefused(self.code, "no")


class Metadata:
    """Of an instance whose group ends it at a time of the loop."""

    def __init__(self, tags: dict[str, str] | None = TAGS, *, ends_at: float = 0) -> None:
        self.tags, self.ends_at = tags, ends_at

    async def instance(self) -> Instance:
        return Instance(instance_id="i-0", region="z-1", zone="z-1a", tags=self.tags)

    async def notice(
        self, *, takes_rebalance: bool = False, takes_scaling: bool = False
    ) -> Notice | None:
        assert takes_scaling
        assert not takes_rebalance  # the group sees to it
        if asyncio.get_running_loop().time() < self.ends_at:
            raise MetadataUnanswered("no answer")
        return Notice(kind="scaling", action="terminate", when="")


def notices_of(groups: Groups, metadata: Metadata) -> Ec2Notices:
    return Ec2Notices("scaling", metadata, Lifecycle(metadata.instance, lambda region: groups))


@pytest.mark.parametrize("code", ["", "ValidationError", "AccessDenied"])
def test_a_group_is_told_until_it_knows_at_the_start_and_at_the_end(code: str) -> None:
    """Nothing is asked again after a refusal: nobody waits for it, or nobody may tell."""

    async def scene() -> float:
        groups, metadata = Groups(unanswered=2, code=code), Metadata(ends_at=50)
        notices, stop, signalled = notices_of(groups, metadata), asyncio.Event(), asyncio.Event()
        await notices.check()
        await notices.report_serving()
        assert groups.told == [("lake", SERVING_HOOK, "i-0")] * 3
        await notices.watch(stop)
        assert stop.is_set()
        asyncio.get_running_loop().call_later(100, signalled.set)
        await notices.stay_until(signalled)
        assert groups.told[3:] == [("lake", ENDING_HOOK, "i-0")]
        return asyncio.get_running_loop().time()

    assert 150 <= simulate(scene, seed=1) <= 155


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "InvalidClientTokenId"])
def test_a_refusal_that_passes_is_not_the_groups_last_word(code: str) -> None:
    """A role's credentials are replaced every few hours; that moment must not cost the machine."""

    class Passing(Groups):
        async def complete(self, group: str, hook: str, instance_id: str) -> None:
            await super().complete(group, hook, instance_id)
            if len(self.told) < 5:
                raise AwsRefused(code, "for now")

    async def scene() -> None:
        groups = Passing()
        notices = notices_of(groups, Metadata())
        await notices.report_serving()
        assert groups.told == [("lake", SERVING_HOOK, "i-0")] * 5

    simulate(scene, seed=1)


@pytest.mark.parametrize("code", ["", "ValidationError", "AccessDenied"])
def test_a_machine_that_cannot_keep_its_nodes_has_itself_replaced(code: str) -> None:
    async def scene() -> None:
        groups = Groups(unanswered=3, code=code)
        notices = notices_of(groups, Metadata())
        await notices.report_unhealthy("process 7 of node 1 cannot end")
        await notices.report_unhealthy("node 2 ended 6 times in a row")
        assert groups.told == [("", "unhealthy", "i-0")] * 4, "once, until it is known"

    simulate(scene, seed=1)


def test_a_machine_of_no_group_tells_nobody_that_it_is_not_healthy() -> None:
    async def scene() -> None:
        await Ec2Notices("").report_unhealthy("process 7 of node 1 cannot end")

    simulate(scene, seed=1)


def test_a_signal_ends_the_attempts() -> None:
    async def scene() -> float:
        groups, signalled = Groups(unanswered=1_000_000), asyncio.Event()
        notices = notices_of(groups, Metadata())
        await notices.watch(asyncio.Event())
        asyncio.get_running_loop().call_later(100, signalled.set)
        await notices.stay_until(signalled)
        assert 30 <= len(groups.told) <= 35
        return asyncio.get_running_loop().time()

    assert simulate(scene, seed=1) == pytest.approx(100)


@pytest.mark.parametrize("tags", [None, {}])
def test_outside_of_a_group_it_does_not_start(tags: dict[str, str] | None) -> None:
    notices = notices_of(Groups(), Metadata(tags))
    with pytest.raises(SettingsError, match="i-0 shows no tag lakehead:group"):
        simulate(notices.check, seed=1)


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImds]:
    with serve_imds() as served:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", served.endpoint)
        served.tag(cluster="c", group="lake")
        served.target("InService")
        yield served


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with serve_answers() as said:
        monkeypatch.setenv("AWS_ENDPOINT_URL_AUTO_SCALING", said.address)
        yield said


@pytest.mark.slow
def test_a_machine_that_its_group_ends_uploads_everything_and_says_so(
    tmp_path: Path, imds: FakeImds, scaling: Answers
) -> None:
    replies = {SERVING_HOOK: [(200, DONE)], ENDING_HOOK: [(503, ""), (200, DONE)]}

    def reply(asked: dict[str, str]) -> tuple[int, str]:
        assert asked["Action"] == "CompleteLifecycleAction"
        assert asked["LifecycleActionResult"] == "CONTINUE"
        assert (asked["AutoScalingGroupName"], asked["InstanceId"]) == ("lake", "i-0a")
        left = replies[asked["LifecycleHookName"]]
        return left.pop(0) if left else (400, ERROR.format("ValidationError", "No active Action"))

    scaling.reply = reply
    machine = Supervised(tmp_path, 2, ["--ec2.notices", "scaling"])
    try:
        machine.wait_ready()
        assert wait_until(lambda: not replies[SERVING_HOOK], 60), machine.log
        assert replies[ENDING_HOOK]
        imds.target("Terminated")
        assert wait_until(lambda: not replies[ENDING_HOOK], 60), machine.log
        assert machine.log.count("event=node_stopped") == 2  # before the group was told
        assert machine.process.poll() is None
        machine.process.send_signal(signal.SIGTERM)
        assert machine.process.wait(20) == 0
        assert all(len(machine.pids(node)) == 1 for node in range(2))
    finally:
        machine.end()
