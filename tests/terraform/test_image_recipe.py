"""The recipe of an image, read without Packer: what it is made of, and what it is not given."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.terraform_tables import ROOT, parsed
from tests.terraform.terraform import RECIPE
from tests.terraform.test_host_scripts import PROVISION
from tests.terraform.test_terraform_lint import INSTALL

TEXT = RECIPE.read_text()
# Those of HCL in Packer 1.9, the least that the recipe says; startswith and alltrue came later.
FUNCTIONS = {
    *("basename", "can", "concat", "contains", "formatdate", "length", "regex", "split"),
    *("timestamp", "trimprefix"),
}


def named(kind: str) -> dict[str, dict[str, Any]]:
    blocks = parsed(RECIPE)[kind]
    return {name.strip('"'): body for block in blocks for name, body in block.items()}


def instance() -> dict[str, Any]:
    (by_name,) = named("source").values()
    body: dict[str, Any] = by_name.get("host") or by_name['"host"']
    return body


def test_every_variable_is_typed_described_and_used() -> None:
    for name, body in named("variable").items():
        assert body.get("type"), name
        assert body.get("description"), name
        assert re.search(rf"\bvar\.{name}\b", TEXT), name
    assert set(re.findall(r"\bvar\.(\w+)", TEXT)) == set(named("variable"))


def test_no_address_or_checksum_of_a_package_is_assumed() -> None:
    required = {name for name, body in named("variable").items() if "default" not in body}
    assert required == {"region", "lakehead_wheel", "package_sha256", "subnet_id"}
    for name in required:
        assert "validation" in named("variable")[name], name


def test_the_recipe_takes_the_packages_that_the_module_takes() -> None:
    module = (ROOT / "variables.tf").read_text()
    for name in ("lakehead_wheel", "package_sha256"):
        conditions = [
            re.findall(rf"condition += (.*var\.{name}\)\))$", text, re.MULTILINE)
            for text in (TEXT, module)
        ]
        assert conditions[0] == conditions[1] != [], name


def test_it_is_made_of_the_image_that_the_module_takes() -> None:
    (name,) = re.findall(r'name += "(/aws/service/[^"]+)"', TEXT)
    module = (ROOT / "modules" / "brokers" / "main.tf").read_text()
    assert name.replace("var.architecture", "local.architecture") in module


def test_hosts_and_images_install_by_one_script() -> None:
    (source,) = re.findall(r'source += "\$\{path\.root\}/(\S+)"', TEXT)
    assert (RECIPE.parent / source).resolve() == INSTALL.resolve()
    (script,) = re.findall(r'script += "\$\{path\.root\}/(\S+)"', TEXT)
    assert RECIPE.parent / script == PROVISION


def test_the_script_is_given_what_it_reads() -> None:
    given = set(re.findall(r'^ +"([A-Z0-9_]+)=', TEXT, re.MULTILINE))
    assert given == set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", PROVISION.read_text()))


def test_the_instance_and_the_image_are_as_closed_as_hosts() -> None:
    body = instance()
    (metadata,) = body["metadata_options"]
    assert metadata["http_tokens"] == "required"
    assert metadata["http_put_response_hop_limit"] == 1
    assert body["imds_support"] == "v2.0"
    assert body["encrypt_boot"] is True
    assert body["associate_public_ip_address"] is False
    assert body["ssh_clear_authorized_keys"] is True
    shared = {"ami_users", "ami_groups", "ami_org_arns", "ami_ou_arns", "snapshot_users"}
    assert shared.isdisjoint(body), "the package may be private"
    assert {"access_key", "secret_key", "token", "user_data"}.isdisjoint(body)


def test_the_instance_may_read_the_package_and_nothing_else() -> None:
    actions = set(re.findall(r'"([a-z0-9]+:[A-Z]\w+)"', TEXT))
    assert actions == {
        *("s3:GetObject", "s3:ListBucket", "kms:Decrypt", "ssm:UpdateInstanceInformation"),
        *(
            f"ssmmessages:{verb}{what}Channel"
            for verb in ("Create", "Open")
            for what in ("Control", "Data")
        ),
    }


def test_functions_are_those_of_the_least_packer() -> None:
    code = re.sub(r'description += ".*"|error_message += ".*"|#.*', "", TEXT)
    assert (
        set(re.findall(r"(?<![\w.])([a-z0-9_]+)\(", re.sub(r"regex\(\".*?\",", "regex(", code)))
        == FUNCTIONS
    )


@pytest.mark.parametrize("script", [PROVISION, INSTALL], ids=lambda path: Path(path).name)
def test_scripts_stop_at_the_first_error(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    code = [line for line in lines if not line.startswith("#")]
    assert code[0] == "set -eu"
