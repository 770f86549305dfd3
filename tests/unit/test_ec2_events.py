"""While maintenance of EC2's is due, the nodes of a machine lead nothing, if others can."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from lakehead.broker.ec2.notices import (
    EVENT_POLL_S,
    LEAD_S,
    Ec2Events,
    InstanceEvents,
    ScheduledEvent,
)
from lakehead.storage.aws.instance import InstanceMetadata, MetadataUnanswered
from tests.simulation.loop import simulate
from tests.support.fake_imds import FakeImds, serve_imds

START_S = 1_548_061_200.0
"""21 Jan 2019 09:00:00 GMT."""


class LoopClock:
    """The wall time is the loop's, from START_S on."""

    def now_ms(self) -> int:
        return int((START_S + self.monotonic()) * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def event(minute: int, code: str = "system-reboot", event_id: str = "e-1") -> ScheduledEvent:
    """Return an event whose window begins at a minute after START_S."""
    begins = f"21 Jan 2019 {9 + minute // 60:02d}:{minute % 60:02d}:00 GMT"
    return ScheduledEvent(
        event_id=event_id, code=code, description="", not_before=begins, not_after=""
    )


class Machine:
    """Its calendar by the loop's time, and what was asked of its nodes. `refusals` come first."""

    def __init__(
        self, *calendar: tuple[float, tuple[ScheduledEvent, ...] | None], refusals: int = 0
    ) -> None:
        self.calendar = calendar
        self.refusals = refusals
        self.asked: list[tuple[float, bool]] = []

    async def scheduled_events(self) -> tuple[ScheduledEvent, ...]:
        now = asyncio.get_running_loop().time()
        events = [found for since, found in self.calendar if since <= now][-1]
        if events is None:
            raise MetadataUnanswered("no answer")
        return events

    async def drain(self, is_draining: bool) -> str:
        self.asked.append((asyncio.get_running_loop().time(), is_draining))
        self.refusals -= 1
        return "node 0 is the only one that may lead" if self.refusals >= 0 else ""

    def lived(self, until: float, *, is_on: bool = True) -> list[tuple[float, bool]]:
        """Return what was asked in a life of so many seconds."""

        async def scene() -> None:
            clock = LoopClock()
            events = Ec2Events(is_on=is_on, drain=self.drain, clock=clock, calendar=self)
            try:
                async with asyncio.timeout(until):
                    await events.watch()
            except TimeoutError:
                pass

        simulate(scene, seed=1)
        return self.asked


@pytest.mark.parametrize(
    "code",
    ["instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "new-code"],
)
def test_nodes_are_drained_minutes_before_any_event_and_not_days(code: str) -> None:
    asked = Machine((0, (event(120, code),))).lived(120 * 60)
    assert {is_draining for _, is_draining in asked} == {True}
    first = asked[0][0]
    assert 120 * 60 - LEAD_S <= first <= 120 * 60 - LEAD_S + EVENT_POLL_S
    assert len(asked) > 10, "a node that started again would lead again"


def test_a_drain_is_taken_back_when_the_event_is_over_put_off_or_cancelled() -> None:
    for after in ((), (event(300),)):
        asked = Machine((0, (event(5),)), (600, after)).lived(2000)
        assert [is_draining for _, is_draining in asked if not is_draining] == [False]
        assert asked[-1][1] is False
        assert 600 <= asked[-1][0] <= 600 + EVENT_POLL_S


def test_a_silent_metadata_service_ends_no_drain() -> None:
    asked = Machine((0, None), (100, (event(1),)), (200, None), (900, ())).lived(1200)
    assert asked[0][0] >= 100
    assert next(moment for moment, is_draining in asked if not is_draining) >= 900


def test_where_no_other_machine_can_lead_it_is_asked_again() -> None:
    machine = Machine((0, (event(1),)), refusals=3)
    assert len(machine.lived(200)) >= 5
    alone = Machine((0, (event(1),)), (100, ()), refusals=1000)
    assert {is_draining for _, is_draining in alone.lived(400)} == {True}, "nothing to take back"


def test_a_time_that_cannot_be_read_is_now() -> None:
    unread = ScheduledEvent(
        event_id="e", code="system-reboot", description="", not_before="soon", not_after=""
    )
    assert Machine((0, (unread,))).lived(10) == [(0.0, True)]


def test_nothing_is_asked_without_events_or_without_the_setting() -> None:
    assert Machine((0, ())).lived(1000) == []
    assert Machine((0, (event(0),))).lived(1000, is_on=False) == []


@pytest.fixture
def imds() -> Iterator[FakeImds]:
    with serve_imds() as served:
        yield served


def test_events_are_read_as_ec2_writes_them(imds: FakeImds) -> None:
    events = InstanceEvents(InstanceMetadata(imds.endpoint))
    assert asyncio.run(events.scheduled_events()) == ()
    written = {
        "NotBefore": "21 Jan 2019 09:00:43 GMT",
        "Code": "system-reboot",
        "Description": "scheduled reboot",
        "EventId": "instance-event-0d59937288b749b32",
        "NotAfter": "21 Jan 2019 09:17:23 GMT",
        "State": "active",
    }
    imds.schedule(written, {**written, "State": "canceled"}, {**written, "State": "completed"})
    (found,) = asyncio.run(events.scheduled_events())
    assert (found.code, found.not_before) == ("system-reboot", "21 Jan 2019 09:00:43 GMT")
    for text in ("{}", "[1]", "not JSON", json.dumps("x")):
        imds.texts["meta-data/events/maintenance/scheduled"] = text
        with pytest.raises(MetadataUnanswered, match="is malformed"):
            asyncio.run(events.scheduled_events())
