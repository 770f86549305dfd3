"""A Lakehead broker on its embedded default: local object store, block WAL in a file."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.process import ServerProcess, free_port

ROOT = Path(__file__).resolve().parent.parent
PYTHON_PATH = os.pathsep.join(str(folder) for folder in (ROOT / "bench" / "without", ROOT))
"""Command of a broker of this checkout, with the packages of an installation."""


def lakehead_server(
    folder: Path,
    *flags: str,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> ServerProcess:
    """A broker of default settings with its data in `folder`, not started; it keeps no declared
    tables by itself, so that only a test or bench writes them.

    `flags` are those of `lakehead start`. Without a port it listens on a free one.
    `under` are arguments of Python that run the broker under another module (a profiler).
    """
    port = free_port() if port is None else port
    command = [
        sys.executable,
        *under,
        *("-m", "lakehead", "start"),
        *("--data", str(folder / "data"), "--port", str(port), "--maintain.tables", "false"),
        *flags,
    ]
    return ServerProcess(
        "Lakehead",
        command,
        port=port,
        log=folder / "lakehead.log",
        environment={"PYTHONPATH": PYTHON_PATH} | dict(environment or {}),
    )
