"""A Lakehead broker on its embedded default: local object store, block WAL in a file."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.process import ServerProcess, free_port
from bench.tls_and_sasl import TlsAndSasl

ROOT = Path(__file__).resolve().parent.parent


def python_path(root: Path) -> str:
    """Return the PYTHONPATH of a broker of a checkout, with the packages of an installation."""
    return os.pathsep.join((str(ROOT / "bench" / "without"), str(root)))


PYTHON_PATH = python_path(ROOT)
"""That of this checkout."""


def lakehead_server(
    folder: Path,
    *flags: str,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    secured: TlsAndSasl | None = None,
    root: Path = ROOT,
    metrics_port: int = 0,
) -> ServerProcess:
    """A broker of default settings with its data in `folder`, not started; it keeps no declared
    tables by itself, so that only a test or bench writes them.

    `flags` are those of `lakehead start`. Without a port it listens on a free one.
    `under` are arguments of Python that run the broker under another module (a profiler).
    Where it is `secured`, its clients use SASL_SSL. `root` is the checkout that it runs,
    not that of the current folder.
    With a `metrics_port` it has a page of metrics there. It has bytecode, as an installed one has.
    """
    port = free_port() if port is None else port
    own, variables = ([], {}) if secured is None else secured.lakehead(port)
    command = [
        sys.executable,
        *under,
        *("-m", "lakehead", "start"),
        *("--data", str(folder / "data"), "--port", str(port), "--maintain.tables", "false"),
        *(("--metrics.port", str(metrics_port)) if metrics_port else ()),
        *own,
        *flags,
    ]
    return ServerProcess(
        "Lakehead",
        command,
        port=port,
        log=folder / "lakehead.log",
        environment={
            "PYTHONPATH": python_path(root),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONSAFEPATH": "1",
        }
        | variables
        | dict(environment or {}),
        client=None if secured is None else secured.client,
        metrics_port=metrics_port,
    )
