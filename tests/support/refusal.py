"""What `lakehead start` says when it cannot work."""

import sys
from pathlib import Path

from tests.support.broker_process import HASTY
from tests.support.template_process import run_forked


def refusal(folder: Path, *flags: str) -> str:
    """The one line with which `lakehead start` refuses; fails if it does anything else."""
    command = [
        *(sys.executable, "-m", "lakehead", "start", "--data", str(folder / "data")),
        *("--port", "0", *HASTY, *flags),
    ]
    done = run_forked(command, timeout=30)
    assert done.returncode not in (0, -9, 137), done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("lakehead: ")
    assert "Traceback" not in done.stdout
    assert "ready" not in done.stdout
    return lines[0]
