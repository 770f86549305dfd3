"""User data of Airflow's instance as Terraform would render it, for tests."""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from docs.terraform_tables import ROOT

MODULE = ROOT / "modules" / "airflow"
VALUES = {
    "digest": "0123456789abcdef" * 4,
    # As Terraform's jsonencode writes it.
    "environment": "\"AIRFLOW_HOME='/var/lib/airflow'\\nAIRFLOW__API__PORT='8080'\\n\"",
    "hostname": "lakehead-airflow",
    "region": "us-east-1",
    "package_folder": "s3://packages/lakehead/airflow",
    "secret": "lakehead/airflow",
    "wheel_basename": "lakehead-1.0-py3-none-any.whl",
}


def files_written() -> dict[str, dict[str, Any]]:
    """Return what cloud-init writes, by path."""
    template = (MODULE / "user_data.yaml.tftpl").read_text()
    assert template.startswith("#cloud-config\n")
    assert set(re.findall(r"\$\{(\w+)\}", template)) == set(VALUES)
    assert "%{" not in template
    text = re.sub(r"\$\{(\w+)\}", lambda found: VALUES[found[1]], template)
    return {one["path"]: one for one in yaml.safe_load(text)["write_files"]}


def environment(values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of host.tf, with `values` in the place of its expressions."""
    text = (MODULE / "host.tf").read_text()
    (block,) = re.findall(r"  environment = .*\? \{\} : \{\n(.*?)\n  \}\n", text, re.DOTALL)
    found = {}
    for line in block.splitlines():
        name, _, expression = line.strip().partition("=")
        expression = expression.strip()
        if expression in values:
            found[name.strip()] = values[expression]
            continue
        literal = re.sub(r"\$\{([^}]+)\}", lambda one: values[one[1]], expression)
        found[name.strip()] = str(json.loads(literal))
    return found
