"""A Lakehead broker on its embedded default: local object store, block WAL in a file."""

import sys
from pathlib import Path

from bench.process import ServerProcess, free_port


def lakehead_server(folder: Path, *flags: str) -> ServerProcess:
    """A broker of default settings with its data in `folder`, not started."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "broker.cli",
        "start",
        "--data",
        str(folder / "data"),
        "--port",
        str(port),
        *flags,
    ]
    return ServerProcess("Lakehead", command, port=port, log=folder / "lakehead.log")
