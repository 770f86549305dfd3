"""A trial's cluster: a root of the project's own Terraform modules in a folder of the run."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.aws_day.account import TAG, TRIAL_TAG, Account

SOURCE = Path(__file__).resolve().parents[2] / "infra" / "terraform"
OUTPUTS = (
    *("hosts", "bootstrap_servers", "monthly_cost_estimate"),
    *("certificate_names", "secrets"),
)
MONTH_HOURS = 730
_GRACE_S = 300
_STEP_S = 2700


class TerraformFailed(Exception):
    """Terraform ended otherwise than expected. The message is the end of what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Terraform in a folder that stays until the run is clean: the state lies there."""

    account: Account
    trial: str
    folder: Path
    environment: Mapping[str, str]
    retries: int | None = None
    """Of the provider; None: its own."""

    @property
    def is_written(self) -> bool:
        """Return true if there may be a state."""
        return (self.folder / "main.tf.json").exists()

    def write(self, arguments: Mapping[str, Any]) -> None:
        """Write the root, with these arguments of the module beside those of every trial."""
        copy = self.folder / "lakehead"
        if not copy.exists():
            ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*", "tests", "examples")
            shutil.copytree(SOURCE, copy, ignore=ignored)
        tags = {TAG: self.account.run, TRIAL_TAG: self.trial}
        provider: dict[str, Any] = {
            "region": self.account.region,
            "allowed_account_ids": [self.account.account_id],
            "default_tags": {"tags": tags},
        }
        if self.retries is not None:
            provider["max_retries"] = self.retries
        module = {
            "source": "./lakehead",
            "name": self.account.named(self.trial),
            "bucket": self.account.bucket(self.trial),
            "zones": [self.account.zone],
            "tags": tags,
            "session_manager": True,
            "expected_traffic": {"mib_per_second": 1, "retention_days": 1, "readers": 1},
        }
        endpoints = {"ssm", "ssmmessages", *arguments.get("interface_endpoints", ())}
        module |= dict(arguments) | {"interface_endpoints": sorted(endpoints)}
        root = {
            "terraform": {
                "required_providers": {
                    "aws": {"source": "hashicorp/aws", "version": ">= 5.100, < 7.0"}
                }
            },
            "provider": {"aws": provider},
            "module": {"lakehead": module},
            "output": {name: {"value": f"${{module.lakehead.{name}}}"} for name in OUTPUTS},
        }
        (self.folder / "main.tf.json").write_text(json.dumps(root, indent=1))

    def init(self) -> None:
        """Install the provider."""
        self.run("init", "-input=false", "-no-color")

    def plan(self) -> tuple[float, list[str]]:
        """Plan, and make nothing. Return dollars an hour by the modules' own estimate, and the
        addresses of what an apply would make.
        """
        self.run("plan", "-input=false", "-no-color", "-out=planned")
        told = json.loads(self.run("show", "-json", "planned"))
        total = told["planned_values"]["outputs"]["monthly_cost_estimate"]["value"]["total"]
        if total is None:
            raise TerraformFailed("the estimate knows no price of this instance type")
        made = [
            one["address"]
            for one in told.get("resource_changes", ())
            if "create" in one["change"]["actions"]
        ]
        return float(total) / MONTH_HOURS, made

    def apply_planned(self) -> None:
        """Do what the last plan says."""
        self.run("apply", "-input=false", "-no-color", "planned")

    def apply(self, seconds: float = _STEP_S) -> None:
        """Make it so."""
        self.run("apply", "-auto-approve", "-input=false", "-no-color", seconds=seconds)

    def outputs(self) -> dict[str, Any]:
        """Return the outputs."""
        told = json.loads(self.run("output", "-json"))
        return {name: one["value"] for name, one in told.items()}

    def destroy(self, emptied: Callable[[], object]) -> None:
        """Remove everything, with what the bucket holds, also after half an apply. `emptied`
        empties the bucket: it is called where Terraform could not.
        """
        state = self.folder / "terraform.tfstate"
        if not state.exists() or not json.loads(state.read_text())["resources"]:
            return
        root = json.loads((self.folder / "main.tf.json").read_text())
        root["module"]["lakehead"]["force_destroy"] = True
        (self.folder / "main.tf.json").write_text(json.dumps(root, indent=1))
        # The bucket, and the names of secrets, which AWS keeps for seven days otherwise.
        parts = [f"-target=module.lakehead.module.{one}" for one in ("storage", "security")]
        code, _ = self.run_any("apply", "-auto-approve", "-input=false", "-no-color", *parts)
        meant = {"LAKEHEAD_MAY_END": "cluster"}  # what the guards of a destroy want to hear
        given = ("destroy", "-auto-approve", "-input=false", "-no-color")
        if code == 0:
            code, _ = self.run_any(*given, more=meant)
        else:
            code = 1
        if code:
            emptied()
            code, text = self.run_any(*given, more=meant)
            if code:
                raise TerraformFailed(f"terraform destroy: {code}: {complaints(text)}")

    def refused_destroy(self) -> str:
        """Try to destroy a cluster that has data; return what Terraform says. Raises
        TerraformFailed if it did it.
        """
        code, text = self.run_any("destroy", "-auto-approve", "-input=false", "-no-color")
        if code == 0:
            raise TerraformFailed("a destroy of a cluster with data was not refused")
        return text

    def run(self, *arguments: str, seconds: float = _STEP_S) -> str:
        """Run Terraform; return what it prints. Raises TerraformFailed."""
        code, text = self.run_any(*arguments, seconds=seconds)
        if code:
            raise TerraformFailed(f"terraform {arguments[0]}: {code}: {complaints(text)}")
        return text

    def run_any(
        self, *arguments: str, seconds: float = _STEP_S, more: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run Terraform; return its status and what it prints. Behind its time it is asked to end,
        which leaves a state that says what there is; one that does not end then is killed.
        """
        with subprocess.Popen(
            ["terraform", *arguments],
            cwd=self.folder,
            env={**os.environ, "TF_IN_AUTOMATION": "1", **self.environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is ours: Terraform gets it once, and ends by itself
        ) as process:
            try:
                text, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                text = _ended(process)
            except KeyboardInterrupt:
                _ended(process)
                raise
            with (self.folder / "terraform.log").open("a") as log:
                log.write(f"$ terraform {' '.join(arguments)}\n{text}\n")
            return process.returncode, text


def _ended(process: subprocess.Popen[str]) -> str:
    """Interrupt Terraform, and kill it with its providers after a while; return what it printed."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_GRACE_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def complaints(text: str) -> str:
    """Return the errors of what Terraform prints, or its end where there is none."""
    _, found, errors = text.partition("\nError: ")
    return (found.strip() + " " + errors if found else text[-1000:]).strip()[:2000]
