"""The release before this one, as a tree that a test runs beside this one.

It is taken out of the history by its commit. Where the history does not reach that far (a shallow
clone), or there is none (sources without a clone), the test is skipped and says why.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.lakehead_server import ROOT
from bench.process import ServerProcess

COMMIT = "6de0a91c451315bd80650fd54b55c0a9560855e0"
"""The last state of the tree at feature level 1."""


def unpack_release(folder: Path) -> Path:
    """Put the release's packages into `folder`, which is returned."""
    return unpack_tree(folder, COMMIT, ("broker", "storage"))


def unpack_tree(folder: Path, commit: str, names: tuple[str, ...]) -> Path:
    """Put files and folders of a commit into `folder`, which is returned; without names all."""
    if not (ROOT / ".git").exists():
        pytest.skip("these are sources without a clone: there is no release before")
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, capture_output=True, check=True).stdout.strip() == b"true":
        pytest.skip("a shallow clone has no release before: git fetch --unshallow")
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, *names],
        capture_output=True,
        check=False,
    )
    assert packed.returncode == 0, packed.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class ReleaseNode:
    """A node of one cluster, started by whichever release."""

    def __init__(self, folder: Path, node_id: int, port: int, flags: tuple[str, ...]) -> None:
        self.node_id = node_id
        self.port = port
        self._folder = folder
        self._flags = flags
        self._server: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "the node was never started"
        return self._server

    @property
    def log(self) -> str:
        """All that it printed in all its lives."""
        return self.server.log.read_text()

    def spawn(self, release: Path | None = None) -> None:
        """Start it with the packages of a release; with those of this tree by default."""
        without = os.pathsep.join((str(ROOT / "bench" / "without"), str(release or ROOT)))
        command = [
            *(sys.executable, "-P"),  # the folder that the tests run in holds this release
            *("-m", "broker.cli" if release else "lakehead", "start"),
            *("--data", str(self._folder / "data"), "--port", str(self.port)),
            *self._flags,
        ]
        self._server = ServerProcess(
            "Lakehead",
            command,
            port=self.port,
            log=self._folder / "lakehead.log",
            environment={"PYTHONPATH": without},
        )
        self._server.spawn()

    def start(self, release: Path | None = None) -> None:
        """Start it and wait until it serves."""
        self.spawn(release)
        self.server.wait_listening()

    def stop(self) -> None:
        """Stop it cleanly, if it runs."""
        if self._server is not None:
            self._server.stop()
