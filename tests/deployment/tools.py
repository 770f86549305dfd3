"""Programs that check the files of infra/: Helm, promtool and the library of Docker Compose, built
once by Go into the user's cache; kubernetes-validate and hadolint in an environment of their own.
"""

import os
import shutil
import subprocess
from functools import cache, partial
from pathlib import Path

from bench.own_environment import environment_of
from bench.user_cache import built_once, run_step

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "compose-go": "github.com/compose-spec/compose-go/v2/cmd@v2.16.2",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool@v0.316.0",
}
_BUILD_S = 3600
_RUN_S = 300


class NoGo(Exception):
    """There is no Go tool chain here."""


@cache
def program(name: str) -> Path:
    """Return a program of MODULES; the first call on a machine builds it, in minutes. Raises
    NoGo, and StepFailed where it cannot be built.
    """
    if found := shutil.which(name):
        return Path(found)
    version = MODULES[name].rpartition("@")[2]
    return built_once(f"{name}-{version}", name, partial(_build, name))


def _build(name: str, folder: Path) -> Path:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise NoGo
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": "-p=1"}
    command = [go, "install", "-ldflags=-s -w", MODULES[name]]
    run_step(command, _BUILD_S, environment=environment)
    return folder / MODULES[name].partition("@")[0].rpartition("/")[2]


def python_tool(name: str) -> Path:
    """Return a program of requirements/deployment.txt. Raises NotInstalled."""
    return environment_of("deployment", "deployment") / "bin" / name


def run(*command: str | Path) -> str:
    """Run a program and return its output. Raises AssertionError with all of it if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_RUN_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
