"""Hosts made by a real Terraform are replaced one after the other under load."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rolling.terraform_hosts import Clients, World, hosts_of_terraform
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform on PATH"),
]
PAUSE_MAX_S = 60.0
"""Far above any pause, and far below what clients take for a failure (message.timeout.ms)."""
ALONE = {frozenset[str](), frozenset({"a-0"}), frozenset({"a-1"}), frozenset({"a-2"})}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hosts_of_terraform(tmp_path, 3) as made:
        yield made


def settings_of(world: World, slot: str) -> str:
    return (world.folder / slot / "lakehead.toml").read_text()


@pytest.mark.parametrize("wal", ["block", "object"])
def test_every_host_is_replaced_and_clients_notice_nothing(tmp_path: Path, wal: str) -> None:
    with hosts_of_terraform(tmp_path, 3, **({} if wal == "block" else {"wal": "object:"})) as world:
        clients = Clients(world)
        world.variables["release"] = 2
        rows = [json.loads(line) for line in world.update("--dry-run", "--json").splitlines()]
        assert [(row["step"], row["hosts"]) for row in rows] == [
            ("prepare", ""),
            ("replace", "a-0"),
            ("replace", "a-1"),
            ("replace", "a-2"),
        ]
        assert [world.boots(f"a-{n}") for n in range(3)] == [1, 1, 1], "a dry run changes nothing"
        done = [json.loads(line) for line in world.update("--json").splitlines()]
        assert [row["step"] for row in done] == ["prepare", *["replace"] * 3, "finish"]
        print("\n".join(map(str, done)))
        assert [world.boots(f"a-{n}") for n in range(3)] == [2, 2, 2]
        assert all(
            '"message.max.bytes" = 1000002' in settings_of(world, f"a-{n}") for n in range(3)
        )
        assert clients.down <= ALONE
        clients.go_on()
        clients.finish(pause_max_s=PAUSE_MAX_S)
        world.terraform("plan", "-detailed-exitcode", *world.options)
        assert "serve" in world.said.splitlines()[-1]
        world.update()
        assert [world.boots(f"a-{n}") for n in range(3)] == [2, 2, 2], "nothing is left to do"


def test_a_killed_run_is_taken_up_and_two_at_once_drain_one_host(world: World) -> None:
    clients = Clients(world)
    world.variables["release"] = 2
    with world.begin() as first:
        assert wait_until(lambda: world.boots("a-0") == 2, 120), world.logs()
        assert wait_until(lambda: any(n.is_draining for n in world.live().values()), 120)
        first.send_signal(signal.SIGKILL)
    with world.begin() as second:
        assert wait_until(lambda: world.boots("a-1") == 2, 180), world.logs()
        second.send_signal(signal.SIGINT)
        assert second.wait(120) == 130, world.said
    with world.begin() as third, world.begin() as fourth:
        third.communicate(timeout=300)
        fourth.communicate(timeout=300)
    # Each may find that the other was faster: it says to run it again, and changed nothing then.
    assert {third.returncode, fourth.returncode} <= {0, 1}, world.said
    world.update()
    assert clients.down <= ALONE
    # Who was stopped in the middle of its apply is tainted, and replaced again.
    assert {world.boots(f"a-{n}") for n in range(3)} <= {2, 3}
    clients.go_on()
    clients.finish()
    world.terraform("plan", "-detailed-exitcode", *world.options)


def test_a_host_that_does_not_come_back_stops_it_and_the_others_serve(world: World) -> None:
    clients = Clients(world)
    (world.folder / "a-0" / "broken").touch()
    world.variables["release"] = 2
    line = world.fails("--timeout", "15")
    assert "a-0: " in line
    assert "waited for 15 s" in line
    assert world.running() == {"a-1", "a-2"}
    clients.go_on()
    assert "a-0" in world.fails("--timeout", "5"), "nothing is drained while another is down"
    assert [world.boots(f"a-{n}") for n in (1, 2)] == [1, 1]
    (world.folder / "a-0" / "broken").unlink()
    world.boot("a-0")
    world.update()
    assert [world.boots(f"a-{n}") for n in range(3)] == [2, 2, 2]
    clients.finish()


def test_hosts_come_and_go_and_volumes_grow_while_clients_go_on(world: World) -> None:
    clients = Clients(world)
    assert all(31 << 20 < size < 32 << 20 for n in range(3) for size in world.wal_sizes(f"a-{n}"))
    world.variables["hosts"] = 5
    rows = [json.loads(line) for line in world.update("--json").splitlines()]
    steps = [("prepare", "a-3, a-4"), ("finish", "")]
    assert [(row["step"], row["hosts"]) for row in rows] == steps
    assert wait_until(lambda: set(world.leads()) == set(world.live()), 60), "all have their share"
    assert len(world.live()) == 10

    world.variables["hosts"] = 2
    rows = [json.loads(line) for line in world.update("--json").splitlines()]
    assert (rows[0]["step"], rows[0]["hosts"]) == ("remove", "a-2, a-3, a-4")
    assert sorted(world.state().nodes) == [0, 1, 100, 101], "the others are unregistered"
    assert not any((world.folder / f"a-{n}" / "wal").exists() for n in (2, 3, 4))
    assert world.running() == {"a-0", "a-1"}
    told = json.loads(world.terraform("output", "-json", "cluster"))
    assert set(told["hosts"]) == {"a-0", "a-1"}, "outputs name those that are there"

    world.variables["wal"] = "block:FOLDER/SLOT/wal?size=128MiB&slices=2&grow=yes"
    world.update()
    assert [(world.folder / f"a-{n}" / "wal").stat().st_size for n in range(2)] == [128 << 20] * 2
    assert all(size > 63 << 20 for n in range(2) for size in world.wal_sizes(f"a-{n}"))
    clients.finish()


def test_a_host_is_not_removed_that_nobody_could_follow_or_whose_log_is_needed(
    tmp_path: Path,
) -> None:
    with hosts_of_terraform(tmp_path, 2, upload_age_ms=600_000) as world:
        clients = Clients(world)
        world.kill("a-1")
        world.variables["hosts"] = 1
        line = world.fails("--timeout", "10")
        assert "its log holds what was not uploaded" in line
        assert world.running() == {"a-0"}
        assert (world.folder / "a-1" / "wal").exists()
        world.boot("a-1")
        world.wait_live(0, 1, 100, 101)
        world.update()
        assert sorted(world.state().nodes) == [0, 1]
        world.variables["release"] = 2
        assert "no node is left to lead" in world.fails("--timeout", "10")
        assert world.boots("a-0") == 1
        clients.finish()


def test_a_host_that_died_is_replaced_first(world: World) -> None:
    clients = Clients(world)
    world.kill("a-2")
    world.wait_live(0, 1, 100, 101)
    world.variables["release"] = 2
    rows = [json.loads(line) for line in world.update("--dry-run", "--json").splitlines()]
    assert [row["hosts"] for row in rows] == ["", "a-2", "a-0", "a-1"]
    world.update()
    clients.go_on()
    clients.finish()
    world.wait_live(0, 1, 100, 101, 200, 201)
