"""A broker that is forked off a template: as `bench.lakehead_server`, without its imports."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.lakehead_server import lakehead_server
from bench.process import ServerProcess
from tests.support.template_process import ForkedPython


class ForkedServer(ServerProcess):
    """A server whose process is forked."""

    def spawn(self) -> None:
        """Start the process, and wait for nothing."""
        with self.log.open("ab") as log:
            self._process = ForkedPython(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def forked_server(
    folder: Path,
    *flags: str,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> ForkedServer:
    """A broker as `lakehead_server` makes it, not started, with a write-ahead log of 64 MB: many of
    them keep their folders until the run of the tests ends, and the default takes a gibibyte.
    """
    made = lakehead_server(folder, "--wal.size", "64m", *flags, port=port, environment=environment)
    return ForkedServer(
        made.name, made._command, port=made.port, log=made.log, environment=made._environment
    )
