"""`terraform destroy` goes no further than its guard while the bucket may hold data."""

import os
import subprocess
from pathlib import Path

import pytest

from docs.terraform_tables import ROOT, parsed

ANSWERS = {
    "empty": "echo 0",
    "data": "echo 1",
    "refused": "echo AccessDenied >&2; exit 254",
}


def command() -> str:
    """Return what Terraform gives to a shell."""
    (block,) = parsed(ROOT / "guard.tf")["resource"]
    (provisioner,) = block["terraform_data"]["guard"]["provisioner"]
    assert provisioner["local-exec"]["when"] == "destroy"
    return str(provisioner["local-exec"]["command"]).replace('\\"', '"')


def test_the_guard_is_destroyed_before_any_module() -> None:
    (block,) = parsed(ROOT / "guard.tf")["resource"]
    modules = {
        name.strip('"')
        for file in ROOT.glob("*.tf")
        for one in parsed(file).get("module", [])
        for name in one
    }
    assert set(block["terraform_data"]["guard"]["depends_on"]) == {
        f"${{module.{name}}}" for name in modules
    }


def destroy(folder: Path, answer: str, *, force: bool = False) -> subprocess.CompletedProcess[str]:
    program = folder / "aws"
    program.write_text(f'#!/bin/sh\necho "$AWS_REGION $@" >> {folder}/asked\n{ANSWERS[answer]}\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "BUCKET": "lake-bucket",
        "FORCE": "true" if force else "false",
        "AWS_REGION": "eu-west-1",
    }
    return subprocess.run(
        ["/bin/sh", "-c", command()],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_an_empty_bucket_lets_destroy_go_on(tmp_path: Path) -> None:
    assert destroy(tmp_path, "empty").returncode == 0
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("eu-west-1 s3api list-objects-v2 --bucket lake-bucket --max-keys 1")


@pytest.mark.parametrize(
    ("answer", "line"), [("data", "bucket lake-bucket holds data"), ("refused", "cannot say")]
)
def test_data_or_no_answer_ends_it_with_the_way_out(tmp_path: Path, answer: str, line: str) -> None:
    done = destroy(tmp_path, answer)
    assert done.returncode == 1
    assert line in done.stderr
    assert "Nothing was destroyed" in done.stderr
    assert "force_destroy = true first" in done.stderr


def test_whoever_gave_the_data_up_is_not_asked(tmp_path: Path) -> None:
    assert destroy(tmp_path, "data", force=True).returncode == 0
    assert not (tmp_path / "asked").exists()
