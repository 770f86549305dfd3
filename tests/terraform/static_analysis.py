"""`make tf-lint`: checkov over infra/terraform; tflint, terraform-docs, promtool where they are.

checkov has an environment of its own, in the user's cache, made at the first use (a minute, 290 MB)
from requirements/checkov.txt. It asks nobody outside. What it finds and is meant so has a
`#checkov:skip=ID:reason` beside it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.own_environment import NotInstalled, environment_of
from docs.terraform_tables import folders

SOURCE = Path(__file__).resolve().parents[2] / "infra" / "terraform"
_CHECK_S = 1800


def main() -> int:
    try:
        checkov = environment_of("checkov", "checkov") / "bin" / "checkov"
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    print("checkov", flush=True)
    wrong = run(
        checkov, "--directory", SOURCE, "--framework", "terraform", "--skip-download", "--quiet",
        "--compact", "--skip-path", "tests", "--skip-path", "examples",
    )  # fmt: skip
    if tflint := shutil.which("tflint"):
        print("tflint", flush=True)
        wrong += run(tflint, "--chdir", SOURCE, "--recursive", "--config", SOURCE / ".tflint.hcl")
    if documenter := shutil.which("terraform-docs"):
        print("terraform-docs", flush=True)
        for folder in folders():
            config = SOURCE / ".terraform-docs.yml"
            wrong += run(documenter, "--config", config, "--output-check", folder)
    if promtool := shutil.which("promtool"):
        print("promtool", flush=True)
        wrong += run(promtool, "check", "rules", SOURCE / "modules/observability/rules.yaml")
    return min(wrong, 1)


def run(*command: str | Path) -> int:
    # Checkov's own Python files would be looked for beside ours.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, check=False, timeout=_CHECK_S)
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
