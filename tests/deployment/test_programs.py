"""Files of infra/ by the programs that use them: promtool, hadolint."""

import shutil
from pathlib import Path

import pytest

from tests.deployment.tools import ROOT, program, python_tool, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MODULE = ROOT / "infra/terraform/modules/observability"


def test_each_alert_fires_where_a_node_is_not_well_and_none_where_it_is() -> None:
    assert "SUCCESS" in run(program("promtool"), "test", "rules", MODULE / "rules_test.yaml")


def test_prometheus_takes_rules_and_configuration(tmp_path: Path) -> None:
    shutil.copy(ROOT / "infra/compose/prometheus.yaml", tmp_path)
    shutil.copy(MODULE / "rules.yaml", tmp_path / "lakehead.rules.yaml")
    report = run(program("promtool"), "check", "config", tmp_path / "prometheus.yaml")
    assert "17 rules found" in report


def test_hadolint_finds_no_fault() -> None:
    run(python_tool("hadolint"), ROOT / "Dockerfile")
