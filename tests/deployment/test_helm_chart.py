"""The chart, rendered by Helm: manifests that the API's schemas take, settings that nodes take."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehead.broker.network.listeners import Listeners
from lakehead.broker.setting_sources import load
from lakehead.broker.settings import Settings
from tests.deployment.tools import ROOT, program, python_tool, run
from tests.support.parsed_command import parsed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CHART = ROOT / "infra" / "helm" / "lakehead"
PLAIN = {"store": "s3://bucket/prefix"}
SECURED = PLAIN | {
    "tls.enabled": "true",
    "tls.secretName": "tls",
    "sasl.enabled": "true",
    "sasl.secretName": "admin",
    "external.enabled": "true",
    "serviceMonitor.enabled": "true",
    "credentialsSecret": "keys",
    "replicas": "2",
    r"settings.num\.partitions": "6",
    r"settings.log\.retention\.ms": "604800000",
    r"settings.auto\.create\.topics\.enable": "false",
}
ON_DISKS = PLAIN | {
    "wal": "block:/var/lib/lakehead/wal",
    "persistence.enabled": "true",
    "persistence.storageClassName": "gp3",
}
CASES = {"plain": PLAIN, "secured": SECURED, "on disks": ON_DISKS}


def rendered(values: dict[str, str], version: str = "1.35") -> list[dict[str, Any]]:
    flags = [word for pair in values.items() for word in ("--set", "=".join(pair))]
    flags += ["--kube-version", version]
    text = run(program("helm"), "template", "lake", CHART, "--namespace", "data", *flags)
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] == kind]


def settings_of(manifests: list[dict[str, Any]], folder: Path, pod: int = 1) -> Settings:
    """The settings of a pod, as its node would load them."""
    (config,) = of_kind(manifests, "ConfigMap")
    text = config["data"]["lakehead.toml"].replace("/etc/lakehead", str(folder))
    (folder / "lakehead.toml").write_text(text)
    (folder / "sasl").mkdir(exist_ok=True)
    (folder / "sasl/password").write_text("a-password\n")
    name = f"lake-{pod}"
    fields = {"pod-index": str(pod), "zone": "eu-central-1a", "metadata.name": name}
    environment = {}
    for one in container(manifests)["env"]:
        value = one.get("value")
        if value is None:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            (value,) = [text for field, text in fields.items() if field in path]
        environment[one["name"]] = value.replace("$(POD_NAME)", name)
    return load({}, environment, str(folder / "lakehead.toml"))


def container(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(manifests, "StatefulSet")
    (one,) = found["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault(case: str) -> None:
    flags = [word for pair in CASES[case].items() for word in ("--set", "=".join(pair))]
    assert "0 chart(s) failed" in run(program("helm"), "lint", "--strict", CHART, *flags)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", ["1.28", "1.35"])
def test_manifests_are_those_of_the_api(case: str, version: str, tmp_path: Path) -> None:
    manifests = [one for one in rendered(CASES[case], version) if one["kind"] != "ServiceMonitor"]
    path = tmp_path / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    validate = (python_tool("kubernetes-validate"), "--strict", "--kubernetes-version", version)
    run(*validate, path)
    path.write_text(path.read_text().replace("containerPort", "containerPorts"))
    with pytest.raises(AssertionError, match="did not validate"):
        run(*validate, path)


def test_a_store_is_needed() -> None:
    with pytest.raises(AssertionError, match="store is required"):
        rendered({})


@pytest.mark.parametrize("case", CASES)
def test_a_node_takes_the_settings(case: str, tmp_path: Path) -> None:
    manifests = rendered(CASES[case])
    settings = settings_of(manifests, tmp_path)
    assert (settings.node_id, settings.broker_rack, settings.host_id) == (
        1,
        "eu-central-1a",
        "lake-1",
    )
    ports = {one["name"]: one["containerPort"] for one in container(manifests)["ports"]}
    listeners = Listeners(settings)
    assert ports.pop("metrics") == settings.metrics_port
    assert {one.name.lower(): one.port for one in listeners.all.values()} == ports
    addresses = listeners.own_addresses({}, None)
    assert listeners.inter_broker.name == "NODES"
    assert addresses["NODES"] == ("lake-1.lake-nodes.data.svc", ports["nodes"])
    (found,) = of_kind(manifests, "StatefulSet")
    grace_s = found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    (drain_s,) = re.findall(r"timeout (\d+)", str(container(manifests)["lifecycle"]))
    assert settings.shutdown_timeout_ms / 1000 + int(drain_s) < grace_s


def test_values_are_settings(tmp_path: Path) -> None:
    settings = settings_of(rendered(SECURED), tmp_path)
    assert settings.num_partitions == 6
    assert settings.log_retention_ms == 604_800_000
    assert settings.auto_create_topics_enable is False
    assert settings.bootstrap_admin_password == "a-password"


def test_services_select_pods_and_ports_that_there_are() -> None:
    manifests = rendered(SECURED)
    (found,) = of_kind(manifests, "StatefulSet")
    labels = found["spec"]["template"]["metadata"]["labels"]
    names = {one["name"] for one in container(manifests)["ports"]}
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(manifests, "Service")}
    assert set(services) == {"lake-bootstrap", "lake-nodes", "lake-0", "lake-1"}
    assert found["spec"]["serviceName"] in services
    for name, service in services.items():
        pod = service["selector"].pop("statefulset.kubernetes.io/pod-name", name)
        assert pod == name
        assert service["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["ports"]} <= names
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"


def test_mounts_have_volumes_and_commands_are_commands() -> None:
    for values in CASES.values():
        manifests = rendered(values)
        (found,) = of_kind(manifests, "StatefulSet")
        spec = found["spec"]
        volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
        volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
        one = container(manifests)
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes
        parsed(" ".join(["lakehead", *one["args"]]))
        script = one["lifecycle"]["preStop"]["exec"]["command"][-1]
        (drain,) = re.findall(r"lakehead drain .+ --wait", script)
        assert parsed(drain.replace('"$LAKEHEAD_NODE_ID"', "1"))[0] == "drain"
