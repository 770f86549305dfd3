"""A real broker process for tests: started, killed and started again on the same folder and port.

It is small and hasty: uploads, trims and metadata commits happen several times a second, so that a
crash has many places to fall into.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.apache_kafka.server import kafka_server
from bench.process import ServerFailed, ServerProcess, free_port, log_tail
from tests.support.forked_server import forked_server

HASTY = (
    *("--wal.size", "64m"),
    *("--upload.size", "1m", "--upload.age.ms", "200"),
    *("--cache.size", "16m"),
    *("--metadata.checkpoint.entries", "10", "--metadata.poll.ms", "50"),
    *("--offsets.topic.num.partitions", "2"),
    *("--num.partitions", "4"),
    *("--table.roots", "*", "--table.registries", "*"),
)


KEEPING: Mapping[str, str] = {"log.retention.ms": "-1"}
"""Settings for tests whose records have times of long ago, which retention would remove."""


def server_under_test(
    folder: Path, *flags: str, settings: Mapping[str, str] | None = None
) -> ServerProcess:
    """A broker for tests of behaviour that any Kafka broker has; of default settings but for those
    given, which are for both, and our flags.

    `BROKER=kafka` in the environment makes it Apache Kafka: that tells what is right.
    """
    if os.environ.get("BROKER") == "kafka":
        return kafka_server(folder, settings)
    both = (text for name, value in (settings or {}).items() for text in (f"--{name}", value))
    return forked_server(folder, *both, *flags)


class BrokerProcess:
    """One broker on one folder, over many lives."""

    def __init__(self, folder: Path, flags: Sequence[str] = HASTY) -> None:
        self.folder = folder
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._flags = tuple(flags)
        self._server: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "the broker was never started"
        return self._server

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.process.poll() is None

    @property
    def log(self) -> str:
        """The end of what the broker printed in all its lives."""
        return log_tail(self.folder / "lakehead.log", 40)

    def start(self, *, failpoint: str = "") -> None:
        """Start and wait until it listens; raises ServerFailed if it ends before."""
        assert not self.is_running, "the broker is running"
        self._server = forked_server(
            self.folder,
            *self._flags,
            port=self.port,
            environment={"LAKEHEAD_FAILPOINT": failpoint},
        )
        self._server.start()

    def start_towards_failpoint(self, failpoint: str) -> None:
        """Start with a fail-point armed; it may already end the process while it starts."""
        try:
            self.start(failpoint=failpoint)
        except ServerFailed:
            if self.exit_status is None:
                raise

    def kill(self) -> None:
        """`kill -9`, if it still runs, and wait for the end."""
        if self._server is not None:
            self._server.kill()

    def stop(self) -> int:
        """SIGTERM and wait for the end; the exit status."""
        return self.server.stop()

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last life; None while it runs."""
        return self.server.process.poll()
