"""The state that a mocked apply leaves: tests of the default suite read what is rendered of it."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.terraform.terraform import Failed, Terraform


def states(terraform: Terraform, runs: Path) -> dict[str, dict[str, Any]]:
    """Apply a copy of the modules with a mocked provider for each run of a file of tests.

    Returns the state of each run: `root_module` and `outputs`. Raises Failed.
    """
    target = terraform.folder / "tests" / runs.name
    shutil.copy(runs, target)
    try:
        # Modules that only these runs name are installed here.
        terraform.init()
        arguments = ("test", "-json", "-verbose", f"-filter=tests/{runs.name}")
        said = terraform.run(*arguments, codes=(0, 1))
    finally:
        target.unlink()
    messages = [json.loads(line) for line in said.text.splitlines()]
    if said.code:
        told = [one["@message"] for one in messages if one["@level"] == "error"]
        details = [one["diagnostic"]["detail"] for one in messages if "diagnostic" in one]
        raise Failed("\n".join([*told, *details]))
    return {one["@testrun"]: one["test_state"] for one in messages if one["type"] == "test_state"}
