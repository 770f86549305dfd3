"""The policies that infra/terraform makes, read out of mocked applies and kept in a file.

Tests of the default suite read the file; `make tf-test` looks whether it is current, and
`python -m tests.terraform.policy_rendering --write` writes it.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.terraform.mocked_states import states
from tests.terraform.terraform import Failed, NotHere, Terraform, copied, environment

FILE = Path(__file__).with_name("rendered_policies.json")
_RUNS = Path(__file__).with_name("policies.tftest.hcl")
_DOCUMENTS = {
    "aws_iam_role_policy": "policy",
    "aws_iam_role": "assume_role_policy",
    "aws_s3_bucket_policy": "policy",
    "aws_kms_key": "policy",
}

Rendered: TypeAlias = dict[str, dict[str, Any]]
"""Policies by run, then by the resource that has them; of attachments, the ARN."""


def rendered() -> Rendered:
    """Return what is committed."""
    found: Rendered = json.loads(FILE.read_text())
    return found


def render(terraform: Terraform) -> Rendered:
    """Apply a copy of the module with a mocked provider for each run. Raises Failed."""
    return {
        run: dict(sorted(_documents(state["root_module"])))
        for run, state in states(terraform, _RUNS).items()
    }


def _documents(module: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for resource in module.get("resources", ()):
        if resource["mode"] != "managed":
            continue
        values = resource["values"]
        if name := _DOCUMENTS.get(resource["type"]):
            yield resource["address"], json.loads(values[name])
        elif resource["type"] == "aws_iam_role_policy_attachment":
            yield resource["address"], values["policy_arn"]
    for child in module.get("child_modules", ()):
        yield from _documents(child)


def written(policies: Rendered) -> str:
    """Return the file's text: a line for each statement."""
    runs = []
    for run, documents in policies.items():
        parts = []
        for address, document in documents.items():
            if isinstance(document, dict):
                lines = ",\n".join(
                    f"      {json.dumps(one, sort_keys=True)}" for one in document["Statement"]
                )
                version = json.dumps(document["Version"])
                text = f'{{"Version": {version}, "Statement": [\n{lines}\n    ]}}'
            else:
                text = json.dumps(document)
            parts.append(f"    {json.dumps(address)}: {text}")
        runs.append(f"  {json.dumps(run)}: {{\n" + ",\n".join(parts) + "\n  }")
    return "{\n" + ",\n".join(runs) + "\n}\n"


def complaint(found: str) -> str:
    """Return what to do where what was rendered is not what is committed; empty if it is."""
    if FILE.exists() and found == FILE.read_text():
        return ""
    return (
        "The policies of infra/terraform have changed: run python -m "
        "tests.terraform.policy_rendering --write, and see what tests/terraform/test_policies.py "
        "says of them."
    )


def main() -> int:
    """Render, and compare with the file or write it. Status 1: it is not current."""
    with tempfile.TemporaryDirectory(prefix="lakehead-policies-") as folder:
        try:
            settings = environment(Path(folder)) | {"LAKEHEAD_MAY_END": "cluster"}
            terraform = Terraform(folder=copied(Path(folder)), environment=settings)
            found = written(render(terraform))
        except (NotHere, Failed) as error:
            print(error, file=sys.stderr)
            return 1
    if "--write" in sys.argv[1:]:
        FILE.write_text(found)
    elif told := complaint(found):
        print(told)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
