"""Terraform as a process: what it is asked, what its failures say, and how it is asked to stop."""

import asyncio
from pathlib import Path

import pytest

from lakehead.broker.cli.rolling.terraform import Terraform, TerraformFailed
from lakehead.storage.errors import SettingsError

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
