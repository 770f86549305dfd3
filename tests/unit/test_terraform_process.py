"""Terraform as a process: what it is asked, what its failures say, and how it is asked to stop."""

import asyncio
import gc
import os
import re
import signal
from pathlib import Path

import pytest

from lakehead.broker.cli.rolling.terraform import Terraform, TerraformFailed
from lakehead.storage.errors import SettingsError
from tests.support.waiting import wait_until

DIAGNOSTIC = (
    '{"@level":"error","type":"diagnostic",'
    '"diagnostic":{"severity":"error","summary":"Error acquiring the state lock",'
    '"detail":"Somebody else\\nhas it."}}'
)
PROGRESS = '{"@message":"host: Creating...","type":"apply_start"}'


def program(folder: Path, script: str) -> str:
    """A Terraform that does this."""
    file = folder / "terraform"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def terraform(folder: Path, script: str) -> Terraform:
    scratch = folder / "scratch"
    scratch.mkdir()
    return Terraform(program(folder, script), folder, scratch, ["-var=a=1"])


async def test_a_plan_is_saved_shown_and_applied_as_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    script = f"""echo "$@" >> asked
case "$1" in
  show) echo '{{"resource_changes": []}}' ;;
  apply) echo '{PROGRESS}'; while [ ! -e said ]; do sleep 0.05; done ;;
esac"""

    def say(words: str) -> None:
        said.append(words)
        (tmp_path / "said").touch()

    made = terraform(tmp_path, script)
    plan = await made.plan(['host["a-0"]'])
    assert plan.content == {"resource_changes": []}
    await made.apply(plan, say)
    assert said == ["host: Creating..."]
    plans, shows, applies = (tmp_path / "asked").read_text().splitlines()
    assert plans == (
        f'plan -json -input=false -lock-timeout=60s -out={plan.file} -var=a=1 -target=host["a-0"]'
    )
    assert shows == f"show -json {plan.file}"
    assert applies == f"apply -json -input=false -lock-timeout=60s {plan.file}"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (
            f"printf '%s\\n' '{DIAGNOSTIC}'; exit 1",
            "Error acquiring the state lock: Somebody else\nhas it.",
        ),
        ("echo 'no such option' >&2; exit 2", "no such option"),
        ("echo 'in plain words'; exit 1", "in plain words"),
    ],
)
async def test_a_failure_says_why(tmp_path: Path, script: str, line: str) -> None:
    with pytest.raises(TerraformFailed) as failed:
        await terraform(tmp_path, script).plan()
    assert str(failed.value).strip() == f"terraform plan failed: {line}"


async def test_without_terraform_it_says_what_to_do(tmp_path: Path) -> None:
    made = Terraform(str(tmp_path / "none"), tmp_path, tmp_path)
    with pytest.raises(SettingsError, match="install Terraform, or name it with --terraform"):
        await made.plan()


async def test_who_is_stopped_asks_terraform_to_stop_once_and_waits_for_it(tmp_path: Path) -> None:
    script = """trap 'echo asked >> stops; sleep 0.3; touch state-saved; exit 1' INT
touch begun
while true; do sleep 0.05; done"""
    made = terraform(tmp_path, script)
    planning = asyncio.get_running_loop().create_task(made.plan())
    while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - another process tells nobody
        await asyncio.sleep(0.01)
    planning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await planning
    assert (tmp_path / "state-saved").exists()
    assert (tmp_path / "stops").read_text() == "asked\n"


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_terraform_that_does_not_stop_is_left_to_its_end_and_named(tmp_path: Path) -> None:
    script = """trap 'touch told' INT
trap 'touch alive; exit 1' USR1
touch begun
while true; do sleep 0.05; done"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = Terraform(program(tmp_path, script), tmp_path, scratch, stop_s=0.3)

    async def stopped() -> None:
        planning = asyncio.get_running_loop().create_task(made.plan())
        while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.01)
        planning.cancel()
        await planning

    with pytest.raises(TerraformFailed, match=r"has not ended after 0\.3 s") as failed:
        asyncio.run(stopped())
    (pid,) = re.findall(r"process (\d+) continues", str(failed.value))
    del failed
    gc.collect()
    os.kill(int(pid), signal.SIGUSR1)  # it outlives the event loop: else this raises
    assert wait_until((tmp_path / "alive").exists, 30)
    assert (tmp_path / "told").exists()
