"""The parts of a sandbox day that need no AWS: limits, ledger, report, settings, teardown."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.clock import SystemClock
from tests.aws_day import cluster as cluster_module
from tests.aws_day import cluster_secrets, leftovers, packages, preflight
from tests.aws_day import day as day_module
from tests.aws_day.__main__ import chosen
from tests.aws_day.account import Account
from tests.aws_day.cluster import Cluster, TerraformFailed, complaints
from tests.aws_day.day import Day
from tests.aws_day.day_hosts import HostFailed, figures
from tests.aws_day.day_ledger import Ledger
from tests.aws_day.day_page import PAGE, with_tables
from tests.aws_day.day_report import Expected, Report, Result
from tests.aws_day.emulated_hosts import PRINTED
from tests.aws_day.leftovers import Piece
from tests.aws_day.limits import HastyClock, Limits, NotInTime, OverLimit, Spending, hours_paid
from tests.aws_day.packages import Packages
from tests.aws_day.preflight import NotReady
from tests.aws_day.settings import DaySettings, NotSaid
from tests.aws_day.trial import Scene, Trial
from tests.aws_day.trials import TRIALS

ACCOUNT = Account(
    account_id="123456789012", region="us-east-1", zone="us-east-1a", run="day-11230900"
)


def limits(budget: float = 10, seconds: float = 3600) -> Limits:
    clock = HastyClock()
    return Limits(
        clock=clock,
        spending=Spending(clock=clock),
        budget=budget,
        ends_at=clock.monotonic() + seconds,
    )


class Tried(Trial):
    """A trial whose cluster is pretended."""

    minutes = 60
    expected = (Expected(name="one", unit="", source="here", at_least=1, at_most=1),)

    def __init__(self, name: str, does: Callable[[Scene], object]) -> None:
        self.name = name
        self._does = does

    def arguments(self) -> dict[str, Any]:
        return {}

    def run(self, scene: Scene) -> None:
        self._does(scene)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Clusters that cost a dollar an hour and an account that is empty; give what was done."""
    done: dict[str, list[str]] = {"applied": [], "destroyed": [], "left": []}

    def destroyed(self: Cluster, emptied: Callable[[], object]) -> None:
        del emptied
        done["destroyed"].append(self.trial)

    def applied(self: Cluster) -> None:
        lines = Ledger(self.folder.parent / "ledger.jsonl", SystemClock()).pending()
        assert (self.trial, "resource", "aws_vpc.this") in lines, "noted before it is made"
        done["applied"].append(self.trial)

    monkeypatch.setattr(Cluster, "write", lambda self, _: (self.folder / "main.tf.json").touch())
    monkeypatch.setattr(Cluster, "init", lambda self: None)
    monkeypatch.setattr(Cluster, "plan", lambda self: (1.0, ["aws_vpc.this"]))
    monkeypatch.setattr(Cluster, "apply_planned", applied)
    monkeypatch.setattr(Cluster, "outputs", lambda self: {"bootstrap_servers": "a:9092"})
    monkeypatch.setattr(Cluster, "destroy", destroyed)
    monkeypatch.setattr(preflight, "check_tools", lambda _: None)
    monkeypatch.setattr(preflight, "check_account", lambda _: None)
    monkeypatch.setattr(preflight, "check_quotas", lambda *_: None)
    monkeypatch.setattr(packages, "upload", lambda *_: Packages(wheel="s3://w", sha256="0"))
    monkeypatch.setattr(cluster_secrets, "put_values", lambda *_: None)
    monkeypatch.setattr(day_module, "_instances", lambda *_: [])
    monkeypatch.setattr(
        leftovers, "clean", lambda *_: [Piece("volume", one) for one in done["left"]]
    )
    return done


def day(folder: Path, *trials: Trial, budget: float = 100, hours: float = 12) -> Day:
    said = {"DRY_RUN": "1", "BUDGET": str(budget), "HOURS": str(hours), "FOLDER": str(folder)}
    settings = DaySettings.of(said, "11230900")
    return Day(
        settings=settings, account=ACCOUNT, trials=trials, clock=HastyClock(), tell=lambda _: None
    )


def states(folder: Path) -> dict[str, str]:
    told = json.loads((folder / "day-11230900" / "report.json").read_text())
    return {one["trial"]: one["state"] for one in told["trials"]}


def good(name: str) -> Tried:
    return Tried(name, lambda scene: scene.figure("one", 1))


def fails(scene: Scene) -> None:
    raise HostFailed(f"{scene.trial} broke")


def test_a_trial_that_fails_is_removed_and_the_next_one_runs(
    tmp_path: Path, pretended: dict[str, list[str]]
) -> None:
    status = day(tmp_path, good("a"), Tried("b", fails), good("c")).run()
    assert states(tmp_path) == {"a": "done", "b": "failed", "c": "done"}
    assert pretended["applied"] == ["a", "b", "c"]
    assert pretended["destroyed"][-3:] == ["a", "b", "c"]
    assert status == 1
    assert "HostFailed: b broke" in (tmp_path / "day-11230900" / "report.md").read_text()


def test_an_interrupted_day_is_removed_and_goes_on_where_it_was(
    tmp_path: Path, pretended: dict[str, list[str]]
) -> None:
    def interrupted(scene: Scene) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        day(tmp_path, good("a"), Tried("b", interrupted), good("c")).run()
    assert pretended["destroyed"][-1] == "b"
    assert states(tmp_path) == {"a": "done", "b": "stopped", "c": "not run"}
    pretended["applied"].clear()
    assert day(tmp_path, good("a"), good("b"), good("c")).run() == 0
    assert pretended["applied"] == ["b", "c"]


def test_nothing_is_begun_beyond_the_budget(
    tmp_path: Path, pretended: dict[str, list[str]]
) -> None:
    with pytest.raises(NotReady, match="BUDGET is 3"):
        day(tmp_path, good("a"), good("b"), budget=3).run()
    assert pretended["applied"] == []

    def dear(scene: Scene) -> None:
        scene.limits.spending.pay(50)
        scene.limits.check()

    day(tmp_path, Tried("a", dear), good("b"), budget=20).run()
    assert states(tmp_path) == {"a": "stopped", "b": "stopped"}
    assert pretended["applied"] == ["a"]
    assert "a" in pretended["destroyed"]


def test_no_trial_goes_on_beyond_its_time_nor_that_of_the_day(
    tmp_path: Path, pretended: dict[str, list[str]]
) -> None:
    def slow(scene: Scene) -> None:
        scene.limits.until("what never comes", 10**6, lambda: False)

    day(tmp_path, Tried("a", slow), good("b")).run()
    assert states(tmp_path) == {"a": "stopped", "b": "done"}
    day(tmp_path / "short", Tried("a", slow), good("b"), hours=0.5).run()
    assert states(tmp_path / "short") == {"a": "stopped", "b": "stopped"}
    assert pretended["applied"] == ["a", "b", "a"]


def test_what_is_left_makes_the_status_and_stands_in_the_report(
    tmp_path: Path, pretended: dict[str, list[str]]
) -> None:
    pretended["left"].append("vol-1")
    assert day(tmp_path, good("a")).run() == 2
    assert "- volume vol-1" in (tmp_path / "day-11230900" / "report.md").read_text()
    assert day(tmp_path, good("a")).clean() == 2
    pretended["left"].clear()
    assert day(tmp_path, good("a")).clean() == 0
    assert day(tmp_path, good("a")).ledger.pending() == []


def test_an_account_that_cannot_be_looked_at_counts_as_not_empty(
    tmp_path: Path, pretended: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: object) -> list[Piece]:
        raise NoCredentialsError

    monkeypatch.setattr(leftovers, "clean", expired)
    assert day(tmp_path, good("a")).run() == 2
    assert states(tmp_path) == {"a": "done"}
    assert pretended["destroyed"][-1] == "a"


def test_a_clean_up_goes_on_by_tag_where_terraform_fails(
    tmp_path: Path, pretended: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    day(tmp_path, good("a"), good("b")).run()

    def stuck(self: Cluster, emptied: Callable[[], object]) -> None:
        raise TerraformFailed(f"{self.trial} stays")

    monkeypatch.setattr(Cluster, "destroy", stuck)
    assert day(tmp_path, good("a"), good("b")).clean() == 0
    pretended["left"].append("vol-1")
    assert day(tmp_path, good("a"), good("b")).clean() == 2


@pytest.mark.parametrize("end", [KeyboardInterrupt(), subprocess.TimeoutExpired("terraform", 1)])
@pytest.mark.parametrize("obeys", [True, False])
def test_terraform_is_interrupted_then_killed_and_an_interrupt_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, obeys: bool
) -> None:
    program = tmp_path / "bin" / "terraform"
    program.parent.mkdir()
    handler = (
        "lambda *_: (print('saved', flush=True), sys.exit(130))" if obeys else "signal.SIG_IGN"
    )
    program.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\nsignal.signal(signal.SIGINT, {handler})\n"
        "open('ready', 'w').close()\nwhile True:\n    time.sleep(0.01)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(cluster_module, "_GRACE_S", 60.0 if obeys else 0.1)
    cluster = Cluster(account=ACCOUNT, trial="a", folder=tmp_path, environment={})
    real = subprocess.Popen.communicate
    calls: list[object] = []

    def interrupted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(named)
        if len(calls) == 1:
            while not (cluster.folder / "ready").exists():
                assert self.poll() is None
            raise end
        return real(self, *arguments, **named)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    if isinstance(end, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            cluster.run_any("apply")
    else:
        assert cluster.run_any("apply") == ((130, "saved\n") if obeys else (-signal.SIGKILL, ""))
    assert len(calls) == (2 if obeys else 3)


def test_what_terraform_complains_of_is_told_and_not_what_it_did_before() -> None:
    printed = f"{'aws_vpc.this: Creating...' * 500}\nError: no such zone\n\n  with a.b"
    assert complaints(printed) == "Error: no such zone\n\n  with a.b"
    assert complaints("it fell over") == "it fell over"


def test_a_destroy_that_fails_is_told_and_does_not_hide_the_trial(
    tmp_path: Path, pretended: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(self: Cluster, emptied: Callable[[], object]) -> None:
        if pretended["applied"]:
            raise TerraformFailed(f"{self.trial} stays")

    monkeypatch.setattr(Cluster, "destroy", stuck)
    assert day(tmp_path, good("a")).run() == 0
    page = (tmp_path / "day-11230900" / "report.md").read_text()
    assert "Terraform did not remove all: a stays" in page


def test_the_ledger_has_what_may_be_there_whatever_the_crash(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", SystemClock())
    removed: list[str] = []
    with ledger.kept("a", "volume", "one", lambda: removed.append("one")):
        assert ledger.pending() == [("a", "volume", "one")]
    assert ledger.pending() == []
    with (
        pytest.raises(HostFailed),
        ledger.kept("a", "volume", "two", lambda: removed.append("two")),
    ):
        raise HostFailed
    assert removed == ["one", "two"]

    def refuses() -> None:
        raise ValueError

    with pytest.raises(ValueError), ledger.kept("a", "volume", "three", refuses):
        pass
    assert ledger.pending() == [("a", "volume", "three")]
    with ledger.path.open("a") as file:
        file.write('{"trial": "a", "eve')
    assert ledger.pending() == [("a", "volume", "three")]


@given(st.floats(0, 10**6))
def test_hours_are_paid_for_whole(seconds: float) -> None:
    hours = hours_paid(seconds)
    assert hours >= 1
    assert hours * 3600 >= seconds
    assert hours == 1 or (hours - 1) * 3600 < seconds


def test_a_wait_says_what_did_not_come() -> None:
    of = limits()
    with pytest.raises(NotInTime, match="the moon: not within 30 s"):
        of.until("the moon", 30, lambda: False)
    assert of.until("at once", 30, lambda: True) < 1
    of.spending.begin("a", 6)
    of.clock.sleep(3000)
    of.check()
    of.clock.sleep(500)
    of.spending.pay(4.5)
    with pytest.raises(OverLimit, match="dollars"):
        of.check()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"BUDGET": "30"}, "ACCOUNT is not set"),
        ({"ACCOUNT": "12", "BUDGET": "30"}, "ACCOUNT is not set"),
        ({"ACCOUNT": "123456789012"}, "BUDGET"),
        ({"ACCOUNT": "123456789012", "BUDGET": "much"}, "BUDGET"),
        ({"ACCOUNT": "123456789012", "BUDGET": "nan"}, "BUDGET"),
        ({"ACCOUNT": "123456789012", "BUDGET": "inf"}, "BUDGET"),
        ({"ACCOUNT": "123456789012", "BUDGET": "-1"}, "BUDGET"),
        ({"ACCOUNT": "123456789012", "BUDGET": "30", "RUN": "lakehead"}, "RUN and CLEAN"),
        ({"ACCOUNT": "123456789012", "CLEAN": "*"}, "RUN and CLEAN"),
    ],
)
def test_a_day_begins_only_by_an_account_and_a_budget(said: dict[str, str], match: str) -> None:
    with pytest.raises(NotSaid, match=match):
        DaySettings.of(said, "11230900")


def test_a_clean_up_needs_no_budget() -> None:
    found = DaySettings.of({"ACCOUNT": "123456789012", "CLEAN": "day-11220800"}, "11230900")
    assert found.run == found.clean == "day-11220800"
    with pytest.raises(NotSaid, match="the trials are destroy"):
        chosen(("nothing",))


def test_names_of_every_trial_fit_into_those_of_aws() -> None:
    for trial in TRIALS:
        assert len(ACCOUNT.named(trial.name)) <= 24
        assert len(ACCOUNT.bucket(trial.name)) <= 42
        assert trial.minutes <= 180
        assert len({one.name for one in trial.expected}) == len(trial.expected)
    assert len({one.name for one in TRIALS}) == len(TRIALS)


def test_each_program_of_hosts_is_pretended_in_a_dry_run() -> None:
    programs = {path.stem for path in (Path(__file__).parent / "on_host").glob("*.py")}
    assert programs == set(PRINTED)


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"Status": "Failed", "StandardOutputContent": 'FIGURES {"a": 1}'}, "Failed"),
        ({"Status": "TimedOut", "StandardErrorContent": "no disk"}, "no disk"),
        ({"Status": "Success", "StandardOutputContent": "fine"}, "fine"),
    ],
)
def test_a_program_without_figures_has_failed(told: dict[str, str], match: str) -> None:
    with pytest.raises(HostFailed, match=match):
        figures("client", told)


def test_figures_are_judged_by_what_was_expected() -> None:
    exact = Expected(name="a", unit="", source="", at_least=2, at_most=2)
    assert [exact.judge(value) for value in (1, 2, 3)] == ["off", "ok", "off"]
    assert Expected(name="a", unit="", source="").judge(7) == "noted"
    most = Expected(name="a", unit="", source="", at_most=5)
    assert (most.judge(5), most.judge(5.1), most.limit()) == ("ok", "off", "at most 5")

    def status(*, figures: dict[str, float], left: tuple[str, ...] = ()) -> int:
        return Report(
            run="r",
            account="1",
            region="x",
            emulated=False,
            results=[Result(trial="t", state="done", figures=figures)],
            expected={"t": (most,)},
            left=left,
            dollars=1,
        ).status()

    assert status(figures={"a": 5}) == 0
    assert status(figures={"a": 6}) == 1
    assert status(figures={}) == 1
    assert status(figures={"a": 5}, left=("volume vol-1",)) == 2


def test_the_page_has_the_trials_and_figures_that_there_are() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page
