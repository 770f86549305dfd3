"""Terraform over a copy of an example, as its user would run it: plans as data, what was said."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.user_cache import cache_folder

SOURCE = Path(__file__).resolve().parents[2] / "infra" / "terraform"
RECIPE = SOURCE.parent / "packer" / "lakehead.pkr.hcl"
MIRROR = Path("/opt/tf-plugins")
BUILT = cache_folder() / "tf-providers"
"""The mirror that `make tf-provider` makes (`tests/terraform/provider_build.py`)."""

STEP_SECONDS = 2400
"""Limit of a plan or an apply: half a minute where nothing else runs."""


class NotHere(Exception):
    """There is no Terraform or no provider. The message says how to get it."""


class Failed(Exception):
    """Terraform ended otherwise than expected. The message is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A finished run of Terraform."""

    code: int
    text: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a plan would do: address of a resource to what is done with it, such as create."""

    changes: Mapping[str, str]
    updates: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    """Of each resource that is updated, the arguments that change: before and after."""


def program() -> str:
    """Return Terraform. Raises NotHere."""
    found = shutil.which("terraform")
    if not found:
        raise NotHere("There is no terraform (1.11 or newer) on PATH: install it, then run again.")
    return found


def mirror() -> Path:
    """Return the folder of providers. Raises NotHere."""
    made = BUILT if providers(BUILT) else MIRROR
    folder = Path(os.environ.get("LAKEHEAD_TF_MIRROR", made))
    if not providers(folder):
        raise NotHere(
            f"{folder} is no mirror with the AWS provider 5.100: make one in infra/terraform by "
            "'terraform providers mirror FOLDER' and name it by LAKEHEAD_TF_MIRROR."
        )
    return folder


def providers(folder: Path) -> list[str]:
    """Return the releases of the AWS provider in a mirror: the newest of each major one."""
    found = {path.name for path in folder.glob("*/hashicorp/aws/[56].*") if path.is_dir()}
    newest: dict[str, str] = {}
    for release in sorted(found, key=lambda one: [int(part) for part in one.split(".")]):
        newest[release.partition(".")[0]] = release
    return [newest[major] for major in sorted(newest)]


def environment(folder: Path, release: str = "") -> dict[str, str]:
    """Return what makes Terraform take providers from the mirror alone, of the AWS provider the
    `release` (empty: the oldest major one there is). Raises NotHere.
    """
    folder.mkdir(exist_ok=True)
    chosen = folder / "providers"
    place = next(mirror().glob(f"*/hashicorp/aws/{release or providers(mirror())[0]}"))
    linked = chosen / place.relative_to(mirror())
    linked.mkdir(parents=True, exist_ok=True)
    for platform in place.iterdir():  # the only level of a mirror at which links are followed
        if not (linked / platform.name).exists():
            (linked / platform.name).symlink_to(platform)
    config = folder / "cli.tfrc"
    config.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{chosen}"\n  }}\n}}\n'
    )
    return {"TF_CLI_CONFIG_FILE": str(config), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}


def copied(folder: Path) -> Path:
    """Return a copy of all modules and examples: nothing is left in the checkout."""
    copy = folder / "terraform"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Terraform:
    """Terraform in a folder, with variables that every plan is given."""

    folder: Path
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def init(self) -> None:
        """Install providers and modules."""
        self.run("init", "-input=false", "-no-color", "-backend=false")

    def override(self, name: str, text: str) -> None:
        """Change the configuration: the text is merged over it, as a user would edit it in."""
        (self.folder / f"{name}_override.tf").write_text(text)

    def plan(self, **variables: str) -> Plan:
        """Return what an apply would do."""
        self.run("plan", "-out=planned", *self.given(variables), codes=(0, 2))
        shown = json.loads(self.run("show", "-json", "planned").text)
        changes = {
            one["address"]: "+".join(one["change"]["actions"])
            for one in shown.get("resource_changes", ())
            if one["change"]["actions"] not in (["no-op"], ["read"])
        }
        updates = {
            one["address"]: _differences(one["change"])
            for one in shown.get("resource_changes", ())
            if one["change"]["actions"] == ["update"]
        }
        return Plan(changes=changes, updates=updates)

    def refused_plan(self, **variables: str) -> str:
        """Return what a plan says that has to be refused."""
        return plain(self.run("plan", *self.given(variables), codes=(1,)).text)

    def apply(self, **variables: str) -> Said:
        """Make it so."""
        return self.run("apply", "-auto-approve", *self.given(variables))

    def apply_planned(self) -> Said:
        """Do what the last plan says, and nothing else."""
        return self.run("apply", "planned", "-no-color")

    def check_nothing_to_do(self, **variables: str) -> None:
        """See that a plan, which looks at everything anew, finds nothing to change."""
        said = self.run("plan", "-detailed-exitcode", *self.given(variables), codes=(0, 2))
        if said.code:
            raise Failed(f"something is to be changed right after the apply:\n{said.text}")

    def destroy(self, *, codes: tuple[int, ...] = (0,), **variables: str) -> Said:
        """Remove everything."""
        return self.run("destroy", "-auto-approve", *self.given(variables), codes=codes)

    def output(self, name: str) -> Any:
        """Return an output."""
        return json.loads(self.run("output", "-json", name).text)

    def addresses(self) -> set[str]:
        """Return the resources that the state has, without data sources."""
        lines = self.run("state", "list").text.splitlines()
        return {line for line in lines if not line.startswith("data.") and ".data." not in line}

    def given(self, variables: Mapping[str, str] | None = None) -> list[str]:
        """Return the arguments that a plan, an apply and a destroy are given."""
        variables = {**self.variables, **(variables or {})}
        given = [f"-var={name}={value}" for name, value in variables.items()]
        return ["-input=false", "-no-color", *given]

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> Said:
        """Run Terraform. Raises Failed with what it said unless it ends as one of `codes`."""
        began = time.monotonic()
        done = subprocess.run(
            [program(), *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        if done.returncode not in codes:
            raise Failed(f"terraform {' '.join(arguments)}: {done.returncode}\n{done.stdout}")
        seconds = time.monotonic() - began
        return Said(code=done.returncode, text=done.stdout, seconds=seconds)


def _differences(change: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    before, after, unknown = change["before"], change["after"], change["after_unknown"]
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name) and not unknown.get(name)
    }


def plain(text: str) -> str:
    """Return what Terraform says without its frames and line ends."""
    words = text.replace("│", " ").replace("╷", " ").replace("╵", " ").split()
    return " ".join(words)
