"""Apache Kafka's own command-line tools for tests: `run("kafka-topics", "--bootstrap-server", …)`.

A test that needs them calls `require_kafka_tools()` first, which skips it where Kafka's jars cannot
be had.
"""

import pytest

from bench.apache_kafka.jars import MissingTool, jars_directory
from bench.apache_kafka.tools import MAIN_CLASSES, command, run

__all__ = ["MAIN_CLASSES", "command", "require_kafka_tools", "run"]


def require_kafka_tools() -> None:
    """Skip the calling test unless Kafka's jars are here or can be fetched."""
    try:
        jars_directory()
    except MissingTool as missing:
        pytest.skip(str(missing))
