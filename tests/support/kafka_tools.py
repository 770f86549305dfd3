"""Apache Kafka's own command-line tools for tests: `run("kafka-topics", "--bootstrap-server", …)`.

A test that needs them calls `require_kafka_tools()` first, which skips it where Kafka's jars cannot
be had.
"""

import pytest

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import MAIN_CLASSES, command, run
from bench.maven import MissingTool

__all__ = ["MAIN_CLASSES", "Tools", "command", "require_kafka_tools", "run"]


def require_kafka_tools() -> None:
    """Skip the calling test unless Kafka's jars are here or can be fetched."""
    try:
        jars_directory()
    except MissingTool as missing:
        pytest.skip(str(missing))


class Tools:
    """Runs tools against one broker; a tool that fails fails the test."""

    def __init__(self, bootstrap: str) -> None:
        self._at = ("--bootstrap-server", bootstrap)

    def __call__(self, tool: str, *arguments: str, stdin: str | None = None) -> str:
        """Run a tool; return what it prints."""
        done = run(tool, *self._at, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, tool: str, *arguments: str) -> str:
        """Run a tool that is to fail; return what it prints."""
        done = run(tool, *self._at, *arguments)
        assert "Error" in done.stdout + done.stderr or done.returncode != 0
        return done.stdout + done.stderr
