"""What Terraform gives to a Prometheus: it is loaded, and its alerts are about known metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from docs.terraform_tables import ROOT

MODULE = ROOT / "modules" / "observability"
RULES = MODULE / "rules.yaml"
METRICS = ROOT.parents[1] / "docs" / "metrics.md"
DISCOVERY = [
    {
        "region": "us-east-1",
        "port": 9404,
        "refresh_interval": "60s",
        "filters": [{"name": "instance.group-id", "values": ["sg-0123abcd"]}],
    }
]


def test_the_collector_s_configuration_in_the_docs_is_whole() -> None:
    page = (METRICS.parent / "terraform.md").read_text()
    (text,) = re.findall(r"```yaml\n(receivers:.*?)```", page, re.DOTALL)
    config = yaml.safe_load(text)
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
    (scrape,) = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert scrape["job_name"] == "lakehead", "rules go by it"


def promtool(*arguments: str | Path) -> str:
    program = shutil.which("promtool")
    if not program:
        pytest.skip("there is no promtool here (package prometheus)")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alerts_are_about_metrics_that_there_are_and_say_what_to_do() -> None:
    known = set(re.findall(r"^\| `(lakehead_\w+)", METRICS.read_text(), re.MULTILINE))
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for rule in group["rules"]:
        assert set(re.findall(r"lakehead_\w+", rule["expr"])) <= known, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "do"}
        assert rule["labels"]["severity"] in {"page", "warn"}


def test_alerts_come_when_they_should_and_not_otherwise() -> None:
    promtool("test", "rules", MODULE / "rules_test.yaml")


def test_prometheus_loads_the_configuration(tmp_path: Path) -> None:
    values = {"name": "lakehead", "discovery": json.dumps(DISCOVERY)}
    template = (MODULE / "scrape.yaml.tftpl").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", template)) == set(values)
    text = re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], template)
    (tmp_path / "prometheus.yaml").write_text(text)
    shutil.copy(RULES, tmp_path / "lakehead.rules.yaml")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["job_name"] == "lakehead", "the alerts ask for it"
    said = promtool("check", "config", tmp_path / "prometheus.yaml")
    assert "1 rule files found" in said
