"""Tests of a user's own, run by pytest in a process of its own with Lakehead's fixtures."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_user_tests(
    folder: Path, *arguments: str, workers: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in `folder` as in a project that has Lakehead installed, without this one's
    settings but with the folder's own, with warnings as errors.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # installed here or not: the plugin is named below
    }
    plugins = ["-p", "lakehead.broker.testing.plugin", *(("-p", "xdist") if workers else ())]
    settings = folder / "pytest.ini"
    parallel = ["-n", str(workers)] if workers else []
    return subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "-W", "error"),
            *("-c", str(settings) if settings.exists() else os.devnull),
            *("--rootdir", str(folder), "-p", "no:cacheprovider"),
            *(*plugins, *parallel, *arguments),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
