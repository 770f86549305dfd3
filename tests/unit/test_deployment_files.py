"""Files of infra/ for containers, Kubernetes, systemd and Prometheus: settings, ports, commands and
names in them are those that there are. Helm and promtool: tests/deployment.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehead.broker.network.listeners import Listeners
from lakehead.broker.observability.health import PROBES
from lakehead.broker.setting_sources import SETTINGS, load, unknown_variables
from tests.support.parsed_command import parsed

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
COMPOSE = INFRA / "compose"
CHART = INFRA / "helm" / "lakehead"
RULES = INFRA / "terraform" / "modules" / "observability" / "rules.yaml"
UNITS = sorted((INFRA / "systemd").glob("*.service"))
NAMES = {setting.name for setting in SETTINGS}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


def brokers() -> dict[str, Any]:
    return {name: one for name, one in compose()["services"].items() if name.startswith("broker-")}


def test_brokers_of_compose_are_one_cluster_that_clients_outside_reach() -> None:
    for number, (name, service) in enumerate(brokers().items()):
        environment = service["environment"]
        assert unknown_variables(environment) == []
        _, given = parsed(f"lakehead {shlex.join(service['command'])}")
        settings = load({"node.id": given["node_id"]}, environment)
        listeners = Listeners(settings)
        assert settings.node_id == number
        assert settings.wal == "object:"
        addresses = listeners.own_addresses({}, None)
        assert listeners.inter_broker.name == "PLAINTEXT"
        outside = str(9092 + number)
        assert f"127.0.0.1:{outside}:9092" in service["ports"]
        assert {name: f"{one.host}:{one.port}" for name, one in addresses.items()} == {
            "PLAINTEXT": f"{name}:29092",
            "LOCAL": f"localhost:{outside}",
        }
        assert service["ports"][1].endswith(f":{settings.metrics_port}")
        assert "9090/ready" in (ROOT / "Dockerfile").read_text()
        assert (settings.metrics_port, settings.metrics_host) == (9090, "0.0.0.0")


def test_compose_opens_ports_to_this_machine_alone() -> None:
    taken = []
    for service in compose()["services"].values():
        for port in service.get("ports", ()):
            address, outside, _ = port.split(":")
            assert address == "127.0.0.1"
            taken.append(outside)
    assert len(taken) == len(set(taken))


def test_services_of_compose_name_what_there_is() -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            known = source in volumes if source[0] not in "./" else (COMPOSE / source).exists()
            assert known, (name, source)
        if "build" in service:
            assert (COMPOSE / service["build"]["context"] / "Dockerfile").exists()
            parsed(f"lakehead {shlex.join(service['command'])}")
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), f"{name}: a fixed version"
    (target,) = [one for one in services if one == "tables"]
    assert "9405" in services[target]["command"][-1]


def test_prometheus_of_compose_finds_every_broker_and_has_the_job_of_the_alerts() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]
    }
    assert jobs["lakehead"] == [f"{name}:9090" for name in brokers()]
    assert 'job="lakehead"' in RULES.read_text()
    mounts = compose()["services"]["prometheus"]["volumes"]
    assert any(config["rule_files"][0] in mount for mount in mounts)


def test_grafana_of_compose_shows_the_dashboard() -> None:
    provisioning = COMPOSE / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/lakehead.yaml").read_text())[
        "providers"
    ]
    service = compose()["services"]["grafana"]
    assert any(mount.split(":")[1] == provider["options"]["path"] for mount in service["volumes"])
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (INFRA / "grafana" / Path(home).name).exists()


def test_the_chart_has_settings_and_probes_that_there_are() -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    made = helpers[helpers.index("$made := dict") :]
    names = re.findall(r'^\s+"([a-z.]+)" ', made, re.MULTILINE)
    assert len(names) > 10
    assert set(names) - NAMES == set()
    manifest = (CHART / "templates/statefulset.yaml").read_text()
    variables = dict.fromkeys(re.findall(r"name: (LAKEHEAD_\w+)", manifest), "1")
    assert len(variables) > 4
    assert unknown_variables(variables) == []
    probes = re.findall(r"path: (/\w+), port: metrics", manifest)
    assert len(probes) == 3
    assert set(probes) <= set(PROBES)


def test_the_chart_is_of_this_release() -> None:
    from lakehead.installation import VERSION

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == VERSION


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_commands_that_there_are(unit: Path) -> None:
    lines = re.findall(r"^Exec\w+=/usr/local/bin/(lakehead .+)$", unit.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        parsed(line)


def test_the_unit_of_brokers_gives_a_stop_the_time_that_it_takes() -> None:
    text = (INFRA / "systemd/lakehead.service").read_text()
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop_s) * 1000 > load({}, {}).shutdown_timeout_ms
    assert "KillMode=mixed" in text
    assert "WatchdogSec=" in text


def test_every_alert_has_a_section_in_the_runbooks() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    page = (ROOT / "docs/runbooks.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n\*(Page|Warning)\.\*", page, re.MULTILINE))
    severities = {"page": "Page", "warn": "Warning"}
    assert sections == {
        rule["alert"]: severities[rule["labels"]["severity"]] for rule in group["rules"]
    }


def test_every_alert_fires_in_the_tests_of_promtool() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    tests = yaml.safe_load(RULES.with_name("rules_test.yaml").read_text())["tests"]
    fired = {
        found
        for test in tests
        for one in test.get("promql_expr_test", ())
        for sample in one["exp_samples"]
        for found in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    fired |= {
        one["alertname"]
        for test in tests
        for one in test.get("alert_rule_test", ())
        if one.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in group["rules"]}
