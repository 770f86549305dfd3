"""A command whose packages are not installed: one line that names the extra, and nothing left."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehead.broker.cli.extras import EXTRAS, missing_extra, require_extras
from lakehead.storage.errors import SettingsError

ROOT = Path(__file__).resolve().parents[2]
BASE_INSTALL = f"""
import sys
for package in {[package for packages in EXTRAS.values() for package in packages]!r}:
    sys.modules[package] = None
from lakehead.broker.cli.process import run
run()
"""
"""A process in which no package of an extra can be imported, as after `pip install lakehead`."""
COMMANDS: Sequence[Sequence[str]] = (
    ("demo",),
    ("sql", "-e", "SELECT 1"),
    ("materialize", "orders"),
    ("materialize", "--follow"),
    ("materialize", "orders", "--metrics", "0"),
    ("optimize", "orders"),
    ("vacuum", "orders"),
    ("replay-dead-letters", "orders"),
    ("rebuild-table", "orders"),
    ("attest", "orders"),
    ("registry",),
    ("airflow",),
)


def _of_base_install(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BASE_INSTALL, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_without_its_packages_names_the_extra_and_leaves_nothing(
    command: Sequence[str], tmp_path: Path
) -> None:
    run = _of_base_install(tmp_path, *command)
    assert run.returncode == 1
    line = r"lakehead: \w+ is not installed; get it with: pip install 'lakehead\[[\w,]+\]'\n"
    assert re.fullmatch(line, run.stderr), run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        ("demo", "lake"),
        ("attest orders", "lake"),
        ("replay-dead-letters orders", "lake"),
        ("registry", "registry"),
        ("connect run files.toml", "client,s3"),
        ("airflow", "airflow,lake"),
    ],
)
def test_a_command_of_several_extras_names_them_at_once(
    command: str, extras: str, tmp_path: Path
) -> None:
    line = _of_base_install(tmp_path, *command.split()).stderr
    assert f"pip install 'lakehead[{extras}]'" in line


def test_doctor_names_no_extra_where_none_is_installed(tmp_path: Path) -> None:
    findings = _of_base_install(tmp_path, "doctor", "--port", "0", "--json").stdout.splitlines()
    assert [one["found"] for one in map(json.loads, findings) if one["check"] == "extras"] == [
        "none"
    ]


def test_a_package_of_no_extra_is_a_defect_and_not_reported_as_missing() -> None:
    assert missing_extra(ModuleNotFoundError("x", name="lakehead.broker.no_such_module")) is None


def test_every_extra_has_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "testing"}
    assert set(EXTRAS) == extras
    for extra in EXTRAS:
        require_extras(extra)
    with pytest.raises(KeyError):
        require_extras("no-such")


def test_a_missing_package_is_found_before_the_command_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pip install 'lakehead\[lake\]'"):
        require_extras()
