"""Files of infra/ by the programs that use them: promtool, Docker Compose's library, systemd,
hadolint.
"""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.deployment.tools import ROOT, program, python_tool, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MODULE = ROOT / "infra/terraform/modules/observability"


def test_each_alert_fires_where_a_node_is_not_well_and_none_where_it_is() -> None:
    assert "SUCCESS" in run(program("promtool"), "test", "rules", MODULE / "rules_test.yaml")


def test_prometheus_takes_rules_and_configuration(tmp_path: Path) -> None:
    shutil.copy(ROOT / "infra/compose/prometheus.yaml", tmp_path)
    shutil.copy(MODULE / "rules.yaml", tmp_path / "lakehead.rules.yaml")
    report = run(program("promtool"), "check", "config", tmp_path / "prometheus.yaml")
    assert "18 rules found" in report


def test_compose_takes_the_file() -> None:
    path = ROOT / "infra/compose/compose.yaml"
    report = run(program("compose-go"), path)
    given = yaml.safe_load(path.read_text())["services"]
    assert yaml.safe_load(report)["services"].keys() == given.keys()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = []
    for unit in (ROOT / "infra/systemd").glob("*.service"):
        units.append(tmp_path / unit.name)
        units[-1].write_text(unit.read_text().replace("/usr/local/bin/lakehead", "/bin/true"))
    assert run("systemd-analyze", "verify", *units) == ""


def test_hadolint_finds_no_fault() -> None:
    run(python_tool("hadolint"), ROOT / "Dockerfile")
