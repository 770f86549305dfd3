"""Tansu, a broker in Rust that keeps its records in S3, built once from its crate.

It is a peer of the object WAL: an acknowledgement waits for a put. `python -m bench.tansu` builds
it, which takes an hour or so on two cores.
"""

import os
import sys
from pathlib import Path

from bench.maven import MissingTool
from bench.process import ServerProcess, free_port
from bench.s3_server import S3Server
from bench.user_cache import StepFailed, built_once, cargo, run_step

VERSION = "0.6.0"
_BUILD_S = 3 * 3600.0


def program() -> Path:
    """Return the executable; the first call on a machine builds it. Raises MissingTool without
    cargo, and if the build fails.
    """
    return built_once(f"tansu-{VERSION}", "tansu", _build)


def _build(folder: Path) -> Path:
    """Compile in a folder; a build that was cut short goes on there."""
    rust = cargo()
    if rust is None:
        raise MissingTool("Tansu needs cargo to be built")
    folder.mkdir(exist_ok=True)
    features = ("--no-default-features", "--features", "dynostore")
    command = [rust, "install", "tansu", "--version", VERSION, "--locked", *features]
    environment = os.environ | {"CARGO_TARGET_DIR": str(folder / "target")}
    try:
        run_step([*command, "--root", folder], _BUILD_S, environment=environment)
    except StepFailed as error:
        raise MissingTool(f"Tansu cannot be built: {error}") from None
    return folder / "bin" / "tansu"


def tansu_server(folder: Path, s3: S3Server) -> ServerProcess:
    """A broker of default settings with its records in the server's bucket, not started."""
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    return ServerProcess(
        "Tansu",
        [
            *(str(program()), "broker", "--storage-engine", f"{s3.uri}/"),
            *("--listener-url", url, "--advertised-listener-url", url),
        ],
        port=port,
        log=folder / "tansu.log",
        environment=s3.environment,
    )


if __name__ == "__main__":
    try:
        print(program())
    except MissingTool as missing:
        sys.exit(str(missing))
