"""A machine that EC2 announces the end of stops its nodes once, and stays until it is ended."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.broker.ec2.notices import Ec2Notices, Notice
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.placement import node_commands
from lakehead.storage.aws.instance import ENDPOINT_VARIABLE, Instance, MetadataUnanswered
from lakehead.storage.errors import SettingsError
from tests.simulation.loop import simulate
from tests.support.fake_imds import FakeImds, serve_imds
from tests.support.supervised import Supervised, supervised
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until


def draining(store: str) -> set[int]:
    """Return the live nodes that lead nothing."""
    done = lakehead_command("nodes", "--json", "--path", store)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["node"] for row in rows if row["state"] == "draining"}


NOTICE = Notice(kind="interruption", action="terminate", when="2026-01-01T00:02:00Z")


class Announced:
    """Unanswered until a time, then a notice from a later time on, of the loop."""

    def __init__(self, *, silent_until: float, at: float) -> None:
        self.silent_until, self.at = silent_until, at
        self.asked_for: list[bool] = []

    async def instance(self) -> Instance:
        return Instance(instance_id="i-0", region="z-1", zone="z-1a")

    async def notice(
        self, *, takes_rebalance: bool = False, takes_scaling: bool = False
    ) -> Notice | None:
        self.asked_for.append(takes_rebalance)
        now = asyncio.get_running_loop().time()
        if now < self.silent_until:
            raise MetadataUnanswered("no answer")
        return NOTICE if now >= self.at else None


@pytest.mark.parametrize(("kinds", "takes"), [("interruption", False), ("rebalance", True)])
def test_a_notice_stops_within_seconds_whatever_was_unanswered_before(
    kinds: str, takes: bool
) -> None:
    announced = Announced(silent_until=40, at=100)

    async def scene() -> float:
        notices, stop = Ec2Notices(kinds, announced), asyncio.Event()
        await notices.watch(stop)
        assert stop.is_set()
        assert notices.notice == NOTICE
        return asyncio.get_running_loop().time()

    assert 100 <= simulate(scene, seed=1) <= 105
    assert set(announced.asked_for) == {takes}


def test_nothing_is_watched_unless_it_is_asked_for() -> None:
    async def scene() -> None:
        notices, stop, never = Ec2Notices(""), asyncio.Event(), asyncio.Event()
        await notices.check()
        await notices.watch(stop)
        assert not stop.is_set()
        await notices.stay_until(never)

    simulate(scene, seed=1)


def test_another_value_is_one_clear_line() -> None:
    with pytest.raises(
        SettingsError, match="'spot' is not one of interruption, rebalance, scaling"
    ):
        Ec2Notices("spot")


def test_nodes_leave_the_watch_to_their_supervisor() -> None:
    settings = Settings(nodes=2, ec2_notices="rebalance")
    for command in node_commands(settings, {"ec2.notices": "rebalance"}, None):
        given = [flag for flag in command.arguments if flag.startswith("--ec2.notices=")]
        assert given == ["--ec2.notices="]


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImds]:
    with serve_imds() as served:
        monkeypatch.setenv(ENDPOINT_VARIABLE, served.endpoint)
        yield served


def test_a_machine_that_is_announced_to_end_uploads_everything_and_stays(
    tmp_path: Path, imds: FakeImds
) -> None:
    machine = Supervised(tmp_path, 2, ["--ec2.notices", "interruption"])
    try:
        machine.wait_ready()
        imds.announce("terminate")
        assert wait_until(lambda: machine.log.count("event=node_stopped") == 2, 30), machine.log
        assert "event=ec2_notice" in machine.log
        assert machine.process.poll() is None
        machine.process.send_signal(signal.SIGTERM)
        assert machine.process.wait(20) == 0
        assert all(len(machine.pids(node)) == 1 for node in range(2))
    finally:
        machine.end()


def test_a_machine_whose_maintenance_is_due_leads_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"file:{tmp_path}/store"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with serve_imds() as served, supervised(tmp_path / "b", 1, "--store", store) as other:
        other.wait_ready()
        served.schedule({"EventId": "e", "Code": "system-reboot", "NotBefore": "now"})
        monkeypatch.setenv(ENDPOINT_VARIABLE, served.endpoint)
        flags = ("--store", store, "--node.id", "10", "--ec2.notices", "interruption")
        with supervised(tmp_path / "a", 2, *flags) as machine:
            machine.wait_ready()
            assert wait_until(lambda: draining(store) == {10, 11}, 30), machine.log
            assert "event=ec2_event_due" in machine.log
            assert machine.process.poll() is None
