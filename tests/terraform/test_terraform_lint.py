"""What can be said of infra/terraform without Terraform: declarations, READMEs, user data."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import terraform_tables
from docs.terraform_tables import ROOT, declarations, folders

MODULES = [pytest.param(folder, id=folder.relative_to(ROOT).as_posix()) for folder in folders()]
USER_DATA = ROOT / "modules" / "brokers" / "user_data.yaml.tftpl"
USER_DATA_BYTES_MAX = 16 * 1024
WHEEL = "s3://packages/lakehead/lakehead-1.0-py3-none-any.whl"
DIGEST = "0123456789abcdef" * 4
PACKAGE = f"{WHEEL}\n{DIGEST}\nus-east-1\n"
INSTALL = USER_DATA.with_name("lakehead-install")
IDENTITY = '"host" = "0.0.0.0"\n"host.id" = "lakehead-a-0"\n"wal" = "object:"\n"wal.size" = "1g"\n'
VALUES = {
    "before_start": "/usr/bin/true",
    "capabilities": "CAP_SYS_ADMIN",
    "cloudwatch": "s3://lake/lakehead-settings/cloudwatch.jsonl",
    "device_rule": '"rule\\n"',
    "devices": "block-blkext rw",
    "groups": '["lakehead-wal"]',
    # As Terraform's indent indents what is in the file.
    "install": INSTALL.read_text().strip().replace("\n", "\n" + 6 * " "),
    "package": json.dumps(PACKAGE),
    "private_devices": "no",
    "reports": "s3://lake/lakehead/hosts",
    "secrets": "--prefix lakehead --region us-east-1 --admin admin",
    "settings": "s3://lake/lakehead-settings/brokers.toml",
    "store_region": "us-east-1",
    "hostname": "lakehead-a-0",
    # As Terraform's jsonencode writes it.
    "identity": '"' + IDENTITY.replace('"', '\\"').replace("\n", "\\n") + '"',
}


def user_data(**changed: str) -> str:
    """Return the user data as Terraform renders it: the template has names and no directives."""
    template, values = USER_DATA.read_text(), {**VALUES, **changed}
    assert set(re.findall(r"(?<!\$)\$\{(\w+)\}", template)) == set(VALUES)
    assert "%{" not in template
    found = re.compile(r"\$\$\{|\$\{(\w+)\}")
    return found.sub(lambda one: values[one[1]] if one[1] else "${", template)


def files_written(**changed: str) -> dict[str, dict[str, Any]]:
    return {one["path"]: one for one in yaml.safe_load(user_data(**changed))["write_files"]}


@pytest.mark.parametrize("folder", MODULES)
def test_variables_are_typed_and_described_and_outputs_described(folder: Path) -> None:
    variables = list(declarations(folder, "variable"))
    assert [one.name for one in variables if not one.type or not one.description] == []
    assert [one.name for one in declarations(folder, "output") if not one.description] == []
    text = "".join(file.read_text() for file in folder.glob("*.tf"))
    assert [one.name for one in variables if not re.search(rf"\bvar\.{one.name}\b", text)] == []
    names = [one.name for kind in ("variable", "output") for one in declarations(folder, kind)]
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []


def test_every_variable_of_the_root_is_validated() -> None:
    free = {
        one.name
        for one in declarations(ROOT, "variable")
        if "validation" not in one.body and one.type != "bool"
    }
    assert free == set()


def test_every_validation_of_the_root_has_a_test_that_it_refuses() -> None:
    refusals = "".join(file.read_text() for file in (ROOT / "tests").glob("*.tftest.hcl"))
    for one in declarations(ROOT, "variable"):
        if checks := one.body.get("validation"):
            expected = re.findall(rf"expect_failures = \[var\.{one.name}[,\]]", refusals)
            assert len(expected) >= len(checks), one.name


@pytest.mark.parametrize("folder", MODULES)
def test_readmes_are_current(folder: Path) -> None:
    assert (folder / "README.md").read_text() == terraform_tables.readme(folder), "run make docs"


@pytest.mark.parametrize("folder", MODULES)
def test_providers_are_5_100_and_later_up_to_6(folder: Path) -> None:
    versions = (folder / "versions.tf").read_text()
    assert 'source  = "hashicorp/aws"' in versions
    # Modules say the least they need, so that a root may choose; roots say what was tried, too.
    bounds = ">= 5.100" if folder.parent.name == "modules" else ">= 5.100, < 7.0"
    assert f'version = "{bounds}"' in versions
    # Only the examples, which are roots, configure a provider.
    assert ('provider "aws"' in versions) == (folder.parent.name == "examples")


def resources(folder: Path, kind: str) -> dict[str, str]:
    """Return the resources and data sources of a type, by name, with what is in them."""
    text = "".join(file.read_text() for file in sorted(folder.glob("*.tf")))
    found = re.findall(
        rf'^(?:resource|data) "{kind}" "(\w+)" {{\n(.*?)^}}', text, re.MULTILINE | re.DOTALL
    )
    return dict(found)


@pytest.mark.parametrize("folder", MODULES)
def test_images_are_found_when_they_are_deprecated(folder: Path) -> None:
    # EC2 leaves deprecated images out of lists, also where a filter names one by its id.
    for name, body in resources(folder, "aws_ami").items():
        assert "include_deprecated = true" in body, name


@pytest.mark.parametrize("folder", MODULES)
def test_what_is_overwritten_without_a_word_is_named_by_the_bucket(folder: Path) -> None:
    """PutMetricAlarm and PutDashboard replace what another cluster of that name has."""
    named = {
        "aws_cloudwatch_metric_alarm": "alarm_name",
        "aws_cloudwatch_dashboard": "dashboard_name",
        "aws_cloudwatch_log_group": "name",
        "aws_cloudwatch_composite_alarm": "alarm_name",
    }
    for kind, argument in named.items():
        for name, body in resources(folder, kind).items():
            assert re.search(rf"{argument} += .*local\.unique", body), f"{kind}.{name}"


def test_user_data_is_cloud_config_and_short_enough_for_ec2() -> None:
    text = user_data()
    assert text.startswith("#cloud-config\n")
    assert len(text.encode()) < USER_DATA_BYTES_MAX * 3 // 4, "names and addresses need room too"
    config = yaml.safe_load(text)
    timers = ["lakehead-settings.timer", "lakehead-cloudwatch.timer"]
    enabled = ["lakehead.service", *timers]
    assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "--no-block", *enabled]


def test_user_data_has_no_settings_but_those_that_say_which_host_it_is() -> None:
    assert "/etc/lakehead/lakehead.toml" not in files_written()
    rendered = (USER_DATA.parent / "main.tf").read_text()
    (user_data_of,) = re.findall(
        r"^  user_data = \{\n(.*?)^  \}$", rendered, re.MULTILINE | re.DOTALL
    )
    assert "local.identity_toml[slot]" in user_data_of
    assert "settings_toml" not in user_data_of
    assert "var.settings" not in user_data_of


def test_what_is_a_host_s_own_survives_cloud_config_and_names_stay_names() -> None:
    content = files_written()["/etc/lakehead/host.toml"]["content"]
    assert content == IDENTITY
    assert tomllib.loads(content) == {
        "host": "0.0.0.0",
        "host.id": "lakehead-a-0",
        "wal": "object:",
        "wal.size": "1g",
    }


def test_the_unit_drains_on_stop() -> None:
    unit = files_written()["/etc/systemd/system/lakehead.service"]["content"].splitlines()
    assert "KillMode=mixed" in unit
    assert "TimeoutStopSec=110" in unit
    assert "CapabilityBoundingSet=" in unit
    (start,) = (line for line in unit if line.startswith("ExecStart="))
    assert start.endswith("lakehead start --config /etc/lakehead/lakehead.toml")
    before = [line.partition("=")[2] for line in unit if line.startswith("ExecStartPre=")]
    assert before.pop(1) == VALUES["before_start"]
    scripts = [files_written()[one.lstrip("+").split()[0]] for one in before]
    assert [script["permissions"] for script in scripts] == ["0755", "0755"]


def test_the_package_is_installed_by_root_before_each_start_until_it_is_there() -> None:
    # Not by cloud-init, which passes over what fails and does it once in an instance's life.
    unit = files_written()["/etc/systemd/system/lakehead.service"]["content"].splitlines()
    (first, *_) = (line for line in unit if line.startswith("ExecStartPre="))
    assert first == "ExecStartPre=+/usr/local/sbin/lakehead-install"
    assert "Restart=always" in unit
    assert not [line for line in unit if line.startswith("Condition")]


def test_hosts_install_by_the_file_that_images_are_made_by() -> None:
    written = files_written()
    script = written["/usr/local/sbin/lakehead-install"]
    assert (script["content"], script["permissions"]) == (INSTALL.read_text(), "0755")
    assert written["/etc/lakehead/package"]["content"] == PACKAGE
