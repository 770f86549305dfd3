"""Apache Kafka's own command-line tools for tests: `run("kafka-topics", "--bootstrap-server", …)`.

They run one after the other in one JVM of the test process: a JVM for each takes two seconds of a
core. A test that needs them calls `require_kafka_tools()` first, which skips it where Kafka's jars
cannot be had.
"""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import MAIN_CLASSES
from bench.maven import MissingTool
from tests.tools.one_jvm import OneJvm

__all__ = ["MAIN_CLASSES", "Tools", "require_kafka_tools", "run"]


def require_kafka_tools() -> None:
    """Skip the calling test unless Kafka's jars are here or can be fetched."""
    try:
        jars_directory()
    except MissingTool as missing:
        pytest.skip(str(missing))


def run(tool: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end: exit status, stdout and stderr.

    Raises ServerFailed if the JVM ends.
    """
    done = _jvm().run(tool, arguments, stdin or "")
    return subprocess.CompletedProcess((tool, *arguments), done.status, done.output, done.errors)


@cache
def _jvm() -> OneJvm:
    """The JVM of this process; it ends when its standard input does."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-tools-"))
    return OneJvm(folder / "jvm.log").__enter__()


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
