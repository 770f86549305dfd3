"""The package `lakehead` as it is installed: one name beside the user's own, quick to import."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lakehead

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("broker", "connectors", "lake", "storage")

PROJECT = """
import sys
import storage, broker, lake, connectors
assert {m.HERE for m in (storage, broker, lake, connectors)} == {"the user's"}

import lakehead
from lakehead.testing import running_broker
assert lakehead.__file__.startswith(sys.argv[1]), lakehead.__file__

with running_broker() as running:
    running.create_topic("orders")
    running.produce("orders", [b"a", b"b"])
    running.flush()
    print(lakehead.scan(running.path, "orders").read_all().num_rows)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_adds_one_package_and_the_one_that_spark_looks_for(installed: Path) -> None:
    found = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert found == {"lakehead", "pyspark_lakehead"}
    assert {path.name for path in (installed / "lakehead").iterdir() if path.is_dir()} == {*PARTS}
    assert (installed / "lakehead" / "py.typed").exists()
    assert not any(path.is_symlink() for path in installed.rglob("*"))


def test_a_project_may_have_packages_of_our_folders_names(installed: Path, tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / part).mkdir()
        (tmp_path / part / "__init__.py").write_text('HERE = "the user\'s"\n')
    (tmp_path / "program.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "program.py", str(installed)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_the_import_loads_nothing_before_it_is_used() -> None:
    code = (
        "import sys, lakehead; print(*sorted(m for m in sys.modules if m.startswith('lakehead')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["lakehead", "lakehead.installation"]


def test_all_that_is_offered_is_there() -> None:
    assert all(callable(getattr(lakehead, name)) for name in lakehead.__all__)
    assert {*lakehead.__all__} <= {*dir(lakehead)}
    with pytest.raises(AttributeError, match="no attribute 'scann'"):
        _ = lakehead.scann
