"""The whole of a sandbox day against the emulator: every trial runs, IAM's least policy has all
calls, and nothing is left. `make aws-day DRY_RUN=1` does the same.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.own_environment import NotInstalled
from tests.aws_day.__main__ import day_in
from tests.aws_day.day import Day
from tests.aws_day.packages import upload
from tests.aws_day.settings import DaySettings
from tests.aws_day.trials import TRIALS
from tests.terraform.emulator import Emulator, emulator
from tests.terraform.inventory import inventory
from tests.terraform.policy_evaluation import action_matches, listed, statements
from tests.terraform.terraform import NotHere, environment, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PARTS = ("destroy io2", "attach stuck", "express spot", "refresh")
POLICY = Path(__file__).parent / "policy.json"
# Operations whose permission has another name (AWS' service authorization reference).
NAMED = {
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:ListDirectoryBuckets": "s3express:ListAllMyDirectoryBuckets",
    "tagging:GetResources": "tag:GetResources",
    "monitoring:DescribeAlarms": "cloudwatch:DescribeAlarms",
    "monitoring:ListDashboards": "cloudwatch:ListDashboards",
}


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    try:
        program()
        with emulator(tmp_path / "emulator.log") as served:
            for name, value in served.environment().items():
                monkeypatch.setenv(name, value)
            yield served
            assert served.faults() == []
    except (NotHere, NotInstalled) as error:
        pytest.skip(str(error))


def dry_day(aws: Emulator, folder: Path, **said: str) -> Day:
    given = {"DRY_RUN": "1", "FOLDER": str(folder / "runs"), **said}
    return day_in(
        DaySettings.of(given, "11230900"),
        environment(folder) | aws.environment() | {"PATH": f"{aws.programs}:{os.environ['PATH']}"},
        is_hasty=True,
    )


def test_every_trial_is_in_a_dry_run() -> None:
    assert {name for names in PARTS for name in names.split()} == {one.name for one in TRIALS}


@pytest.mark.parametrize("only", PARTS)
def test_a_dry_run_runs_its_trials_and_leaves_nothing(
    aws: Emulator, tmp_path: Path, only: str
) -> None:
    before = inventory(aws)
    day = dry_day(aws, tmp_path, ONLY=only)
    status = day.run()
    told = json.loads((day.settings.folder / "report.json").read_text())
    assert {one["trial"]: one["reason"] for one in told["trials"]} == dict.fromkeys(
        [one.name for one in day.trials], ""
    )
    assert [one for one in told["figures"] if one["verdict"] not in {"ok", "noted"}] == []
    assert told["left"] == []
    assert status == 0
    assert inventory(aws) == before
    assert day.ledger.pending() == []
    assert "A dry run against an emulator" in (day.settings.folder / "report.md").read_text()

    policy = json.loads(POLICY.read_text())
    allowed = [action for one in statements(policy) for action in listed(one["Action"])]
    asked = {NAMED.get(call, call) for call in day.account.calls}
    assert [
        call for call in sorted(asked) if not any(action_matches(one, call) for one in allowed)
    ] == []


def test_what_a_lost_run_left_is_found_and_removed_without_its_states(
    aws: Emulator, tmp_path: Path
) -> None:
    before = inventory(aws)
    day = dry_day(aws, tmp_path, ONLY="stuck spot")
    built = upload(day.account, day.ledger, day.wheels())
    for trial in day.trials:
        cluster = day.cluster(trial.name)
        cluster.write(day.arguments(trial, built))
        cluster.init()
        cluster.plan()
        cluster.apply_planned()
    assert len(inventory(aws) - before) > 40
    shutil.rmtree(day.settings.folder)
    other = dry_day(aws, tmp_path, CLEAN="day-11230901")
    assert other.clean() == 0
    assert len(inventory(aws) - before) > 40, "another run's clean-up touches nothing of this one"
    lines: list[str] = []
    again = dry_day(aws, tmp_path, CLEAN="day-11230900")
    again.tell = lines.append
    assert again.clean() == 0, lines
    assert inventory(aws) == before
