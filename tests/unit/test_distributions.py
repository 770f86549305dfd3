"""The wheels: reproducible, with what they should have, and within the versions of platforms."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lakehead.broker.observability.health import PROBES

ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / "distributions/lakehead-spark"
PLATFORMS = sorted((ROOT / "requirements/platforms").glob("*.txt"))


def build(project: Path, folder: Path) -> Path:
    """Build a wheel of `project` into `folder` and return it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=project,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {
        "lakehead": build(ROOT, tmp_path_factory.mktemp("lakehead")),
        "lakehead-spark": build(SPARK, tmp_path_factory.mktemp("spark")),
    }


@pytest.mark.parametrize("name", ["lakehead", "lakehead-spark"])
def test_two_builds_of_a_wheel_are_the_same_bytes(
    wheels: Mapping[str, Path], name: str, tmp_path: Path
) -> None:
    again = build(ROOT if name == "lakehead" else SPARK, tmp_path)
    assert again.name == wheels[name].name
    assert again.read_bytes() == wheels[name].read_bytes()


def test_a_wheel_has_the_package_and_neither_tests_nor_a_plugin_of_pytest(
    wheels: Mapping[str, Path],
) -> None:
    with zipfile.ZipFile(wheels["lakehead"]) as wheel:
        names = wheel.namelist()
        points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "pytest11" not in wheel.read(points).decode()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "lakehead",
        "pyspark_lakehead",
    }
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {"tests", "bench", "__pycache__", "conftest.py"}


def test_the_wheel_for_spark_reads_topics_and_has_no_broker(
    wheels: Mapping[str, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheels["lakehead-spark"]) as wheel:
        wheel.extractall(tmp_path)
    assert not (tmp_path / "lakehead/broker").exists()
    blocked = ("kio", "typer", "rich", "uvloop", "prometheus_client", "joserfc", "re2")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import lakehead, pyspark_lakehead, lakehead.lake.frames, lakehead.lake.topic_scan\n"
        f"assert lakehead.__file__.startswith({str(tmp_path)!r})\n"
        "print(pyspark_lakehead.DefaultSource.name())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "lakehead"), done.stderr


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda path: path.stem)
def test_the_distribution_for_spark_installs_within_the_versions_of_a_platform(
    platform: Path,
) -> None:
    project = tomllib.loads((SPARK / "pyproject.toml").read_text())["project"]
    text = platform.read_text()
    assert re.search(r"^# Source: .+\d{4}-\d\d-\d\d", text, re.MULTILINE | re.DOTALL)
    pythons = re.search(r"^# python: (.+)$", text, re.MULTILINE)
    assert pythons is not None
    for version in pythons[1].split():
        assert Version(version) in SpecifierSet(project["requires-python"])
    ours = {Requirement(one).name: Requirement(one) for one in project["dependencies"]}
    given = [Requirement(one) for one in text.splitlines() if one and not one.startswith("#")]
    assert given
    for one in given:
        lowest = next(s.version for s in one.specifier if s.operator in {"~=", ">=", "=="})
        if one.name in ours:
            assert Version(lowest) in ours[one.name].specifier, (one, ours[one.name])


def sbom() -> ModuleType:
    loader = SourceFileLoader("sbom", str(ROOT / "scripts/sbom"))
    spec = importlib.util.spec_from_loader("sbom", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_bill_of_materials_has_every_pinned_package_with_its_hashes() -> None:
    text = (ROOT / "requirements/base.txt").read_text()
    found = json.loads(json.dumps(sbom().document("lakehead", "0.1.0", text)))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    assert {one["name"]: one["version"] for one in found["components"]} == pins
    hashes = sum(len(one["externalReferences"]) for one in found["components"])
    assert hashes == text.count("--hash=sha256:") > len(pins)
    refs = [one["ref"] for one in found["dependencies"]]
    assert len(refs) == len(set(refs)) == len(pins) + 1


def test_the_image_runs_a_broker_as_its_own_user_and_watches_a_probe_that_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and line[0] not in "# "]
    image = dict(steps[max(at for at, (verb, _) in enumerate(steps) if verb == "FROM") :])
    assert image["USER"] == "10001:10001"
    assert any(f":9090{path}'" in image["HEALTHCHECK"] for path in PROBES)
    settings = (ROOT / "docs/settings.md").read_text() + "`data`"
    flags = [one.removeprefix("--") for one in json.loads(image["CMD"]) if one.startswith("--")]
    assert flags
    assert [flag for flag in flags if f"`{flag}`" not in settings] == []
