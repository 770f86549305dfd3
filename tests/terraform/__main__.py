"""`make tf-test`: format, validity and the mocked tests of infra/terraform, without AWS or network.

The provider comes from a folder (LAKEHEAD_TF_MIRROR): a filesystem mirror, as `terraform providers
mirror` makes one. Of each major release that is there, 5 and 6, the newest is tried. Everything
runs in a copy, so that nothing is left in the checkout. The last line has the mocked runs that
passed and failed.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.terraform import link_rendering
from tests.terraform.mocked_runs import COLLECTOR, NotServed, run_files, served_provider
from tests.terraform.policy_rendering import complaint, render, written
from tests.terraform.terraform import (
    RECIPE,
    Failed,
    NotHere,
    Terraform,
    copied,
    environment,
    mirror,
    program,
    providers,
)

COMMAND_SECONDS = 900
"""Limit of each command: an init or a validation takes ten seconds where nothing else runs."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lakehead-tf-") as folder:
        try:
            releases = providers(mirror())
            for release in releases:
                place = Path(folder) / release
                given = os.environ | environment(place, release)
                # Mocked resources are destroyed after each test, and provisioners are not mocked.
                given["LAKEHEAD_MAY_END"] = "cluster"
                print(f"AWS provider {release}", flush=True)
                if status := run_all(program(), copied(place), given):
                    return status
            if not any(release.startswith("6.") for release in releases):
                print(
                    f"{mirror()} has no AWS provider 6: it was not tried. "
                    "make tf-provider builds one.",
                    file=sys.stderr,
                )
            return 0
        except (NotHere, NotServed) as error:
            return failed(str(error))
        except subprocess.TimeoutExpired as error:
            return failed(f"terraform {error.cmd[1]} was not done in {COMMAND_SECONDS} seconds.")


def run_all(terraform: str, copy: Path, environment: dict[str, str]) -> int:
    def run(where: Path, *arguments: str) -> bool:
        """Run Terraform; print what it prints if it fails."""
        done = subprocess.run(
            [terraform, *arguments],
            cwd=where,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        if done.returncode:
            print(done.stdout, flush=True)
        return done.returncode == 0

    if not run(copy, "fmt", "-check", "-diff", "-recursive"):
        return failed("Run 'terraform fmt -recursive infra/terraform'.")
    # Packer's own "fmt" is the same, and Packer need not be here.
    with RECIPE.open() as recipe:
        formatted = [terraform, "fmt", "-check", "-diff", "-"]
        if subprocess.run(formatted, stdin=recipe, env=environment, check=False).returncode:
            return failed(f"Format {RECIPE.name}: terraform fmt - <{RECIPE}")
    for place in [copy, *sorted(copy.glob("examples/*/"))]:
        if not run(place, "init", "-input=false", "-no-color", "-backend=false"):
            return failed(f"{place.name}: terraform init failed.")
        if not run(place, "validate", "-no-color"):
            return failed(f"{place.name}: terraform validate failed.")
        print(f"{place.relative_to(copy.parent)}: valid", flush=True)
    with served_provider(copy, copy.parent / "provider.log") as served:
        return run_mocked(terraform, copy, {**environment, **served, **COLLECTOR})


def run_mocked(terraform: str, copy: Path, environment: dict[str, str]) -> int:
    """Run all that needs no AWS. Tests of the root run the examples too."""
    began = time.monotonic()
    done = run_files(
        [terraform, "test", "-no-color"],
        copy,
        environment,
        lambda text: print(text, flush=True),
    )
    passed, wrong = sum(one.passed for one in done), sum(one.failed for one in done)
    made = Terraform(folder=copy, environment=environment)
    try:
        told = complaint(written(render(made)))
        told = told or link_rendering.complaint(link_rendering.render(made))
    except Failed as error:
        told = f"What tests go by cannot be rendered: {error}"
    print(
        f"Mocked runs: {passed} passed, {wrong} failed, of {len(done)} files, "
        f"in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return failed(told) if told else int(wrong > 0)


def failed(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
