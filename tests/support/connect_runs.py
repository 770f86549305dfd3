"""`lakehead connect run` as a process, killed and run again; and what is in the topics then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from bench.lakehead_server import ROOT
from lakehead.connectors.connector import Connector
from lakehead.connectors.runtime.kafka_clients import Cluster
from lakehead.connectors.runtime.settings import load_settings
from lakehead.connectors.settings import ConnectorSettings
from lakehead.storage.clock import SystemClock
from tests.support.template_process import ForkedPython

RUN_SECONDS_MAX = 90.0


def committed(bootstrap: str, topic: str) -> list[Message]:
    """Every record of a topic that a reader of committed records gets, by partition and offset."""
    cluster = Cluster({"bootstrap.servers": bootstrap})
    ends = cluster.ends(cluster.partitions([topic]))
    left = {at.partition: high for at, (_, high) in ends.items() if high}
    reader: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "a-test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition(topic, partition, 0) for partition in left])
    found: list[Message] = []
    until = time.monotonic() + RUN_SECONDS_MAX
    while left:
        assert time.monotonic() < until, f"{topic} does not end: is a transaction open?"
        for message in reader.consume(1000, 0.05):
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                if message.offset() >= left[message.partition()]:
                    del left[message.partition()]
    reader.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


def values(bootstrap: str, topic: str) -> list[bytes]:
    """The values of a topic's committed records."""
    return [message.value() or b"" for message in committed(bootstrap, topic)]


class ConnectFile:
    """A connector's TOML file, and its runs."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        path.write_text(text)

    def spawn(self, *flags: str, failpoint: str = "") -> subprocess.Popen[str]:
        """Start a run."""
        command = [sys.executable, "-m", "lakehead", "connect", "run", str(self.path), *flags]
        environment = {"PYTHONPATH": str(ROOT), "LAKEHEAD_FAILPOINT": failpoint}
        return ForkedPython(
            command,
            jobs=True,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *flags: str, failpoint: str = "") -> tuple[int, str]:
        """Run to the end: exit status, and what it printed."""
        process = self.spawn(*flags, failpoint=failpoint)
        out, err = process.communicate(timeout=RUN_SECONDS_MAX)
        return process.returncode, out + err

    def opened(self) -> Connector:
        """The connector, to be run in this process."""
        settings = load_settings(self.path, ConnectorSettings)
        return Connector(settings, SystemClock(), name=str(self.path))


def ended(process: subprocess.Popen[str], how: int = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal, and wait for the end: exit status, and what it printed."""
    process.send_signal(how)
    out, err = process.communicate(timeout=RUN_SECONDS_MAX)
    return process.returncode, out + err
