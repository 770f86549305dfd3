"""User data of the instance that runs Airflow: what it writes, and that Airflow takes it."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.airflow_user_data import files_written

PARTS = {"api-server", "scheduler", "dag-processor", "triggerer"}


@pytest.fixture(scope="module")
def files() -> dict[str, dict[str, Any]]:
    """What cloud-init writes, by path."""
    return files_written()


def test_files_hold_no_secret_and_scripts_are_programs(files: dict[str, dict[str, Any]]) -> None:
    assert files["/etc/airflow/airflow.env"]["content"].splitlines()[0] == (
        "AIRFLOW_HOME='/var/lib/airflow'"
    )
    for path, file in files.items():
        program = path.startswith("/usr/local/sbin/")
        assert file["permissions"] == ("0755" if program else "0644"), path
        if program:
            assert file["content"].startswith("#!/bin/sh\n")
            subprocess.run(["sh", "-n"], input=file["content"].encode(), check=True)


def test_the_target_has_every_part_of_airflow(files: dict[str, dict[str, Any]]) -> None:
    target = files["/etc/systemd/system/airflow.target"]["content"]
    (wants,) = (line for line in target.splitlines() if line.startswith("Wants="))
    assert set(re.findall(r"airflow@([a-z-]+)\.service", wants)) == PARTS
    part = files["/etc/systemd/system/airflow@.service"]["content"]
    assert "ExecStart=/opt/airflow/bin/airflow %i\n" in part
    for unit in files:
        if unit.endswith(".service"):
            wanted = re.findall(r"^Wants=(airflow-\S+)$", files[unit]["content"], re.MULTILINE)
            assert all(f"/etc/systemd/system/{one}" in files for one in wanted)


def test_systemd_understands_the_units(files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("there is no systemd-analyze here")
    units = [Path(path) for path in files if path.startswith("/etc/systemd/system/")]
    for unit in units:
        # Programs that are on the instance and not here.
        text = re.sub(r"(Exec\w+=\+?)\S+", r"\1/bin/true", files[str(unit)]["content"])
        (tmp_path / unit.name).write_text(text)
    for unit in units:
        name = unit.name.replace("@.", "@scheduler.")
        if name != unit.name:
            shutil.copy(tmp_path / unit.name, tmp_path / name)
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        told = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
        assert told == []
        assert done.returncode == 0, done.stderr


def test_setup_makes_keys_once(files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """By the script itself, with an `airflow` that only says what it was asked."""
    airflow = tmp_path / "airflow"
    airflow.write_text(
        '#!/bin/sh\necho "$@" >> asked\ntest -n "$AIRFLOW__CORE__FERNET_KEY" && test ! -e broken\n'
    )
    airflow.chmod(0o755)
    script = files["/usr/local/sbin/airflow-setup"]["content"]
    script = script.replace("/opt/airflow/bin/airflow", str(airflow))

    def run() -> int:
        environment = {"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            ["sh", "-c", script], env=environment, check=False, timeout=30
        ).returncode

    (tmp_path / "broken").touch()
    assert run() != 0
    assert not (tmp_path / "keys.env").exists(), "parts would start without a database"
    (tmp_path / "broken").unlink()
    assert run() == 0
    kept = (tmp_path / "keys.env").read_text()
    assert run() == 0
    assert (tmp_path / "keys.env").read_text() == kept
    assert (tmp_path / "asked").read_text() == "db migrate\ndb migrate\n"
    keys = dict(line.split("=", 1) for line in kept.splitlines())
    assert len(set(keys.values())) == 3
    assert len(keys["AIRFLOW__CORE__FERNET_KEY"]) == 44
    for secret in ("keys.env", "passwords.json"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0
