"""A simulation in another process, under another order of sets, finds the same."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def printed_elsewhere(module: str, function: str) -> str:
    """Return what a function of a module returns in a process with another hash seed, as text."""
    script = (
        f"from {module} import {function}\n"
        "from tests.simulation.quiet import silence_logs\n"
        "silence_logs()\n"
        f"print({function}())\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return there.stdout.strip()
