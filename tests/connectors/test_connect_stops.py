"""A run that is stopped ends in time, whatever a cluster does, and copies each record once."""

import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lakehead.broker.process_end import StopSignals
from lakehead.connectors.runtime.kafka_clients import Cluster
from tests.support.broker_process import KEEPING, BrokerProcess
from tests.support.connect_runs import ConnectFile, values
from tests.support.waiting import wait_until

STOP_S = 1.0
CALL_S = 5.0
"""More than a call of librdkafka that a stop cannot cut short, on a machine that is busy."""
RECORDS = 10
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    flags = tuple(text for name, value in KEEPING.items() for text in (f"--{name}", value))
    found = {
        name: BrokerProcess(tmp_path_factory.mktemp(name), flags) for name in ("source", "target")
    }
    for broker in found.values():
        broker.start()
    yield found
    for broker in found.values():
        broker.kill()


class Rig:
    """A copy of a topic of one cluster into another that goes on."""

    def __init__(self, folder: Path, clusters: dict[str, BrokerProcess], stop_s: float) -> None:
        self.topic = f"orders-{next(NUMBERS)}"
        self.clusters = clusters
        source, target = clusters["source"], clusters["target"]
        Cluster({"bootstrap.servers": source.bootstrap}).create_topic(self.topic, 2, {})
        text = f"""
            name = "{self.topic}"
            kafka.bootstrap.servers = "{source.bootstrap}"
            source.type = "topic"
            source.topics = ["{self.topic}"]
            sink.type = "topic"
            sink.topic = "{{topic}}"
            sink.partitions = 2
            sink.kafka.bootstrap.servers = "{target.bootstrap}"
            run.transaction_seconds = 0.2
            run.poll_seconds = 0.1
            run.stop_seconds = {stop_s}
        """
        self.file = ConnectFile(folder / "copy.toml", text)
        self.run = self.file.spawn("--follow")
        self.written = 0

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.clusters["source"].bootstrap})
        for _ in range(RECORDS):
            producer.produce(self.topic, b"%d" % self.written)
            self.written += 1
        assert producer.flush(30) == 0

    def copied(self) -> list[int]:
        bootstrap = self.clusters["target"].bootstrap
        if self.topic not in Cluster({"bootstrap.servers": bootstrap}).topics():
            return []
        return sorted(int(value) for value in values(bootstrap, self.topic))

    def is_whole(self) -> bool:
        return self.copied() == list(range(self.written))

    def freeze(self, name: str) -> None:
        self.clusters[name].server.process.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.clusters[name].server.process.send_signal(signal.SIGCONT)

    def killed(self) -> str:
        """End the run; what it printed."""
        self.run.kill()
        out, errors = self.run.communicate()
        return out + errors

    def close(self) -> None:
        if self.run.poll() is None:
            self.killed()
        for name in self.clusters:
            self.thaw(name)


@pytest.fixture
def rig(
    tmp_path: Path, clusters: dict[str, BrokerProcess], request: pytest.FixtureRequest
) -> Iterator[Rig]:
    made = Rig(tmp_path, clusters, getattr(request, "param", STOP_S))
    try:
        made.write()
        assert wait_until(made.is_whole, 60), made.killed()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_run_stops_in_time_beside_a_cluster_that_does_not_respond(rig: Rig, name: str) -> None:
    if name == "target":
        rig.freeze(name)
        rig.write()
        threading.Event().wait(1)  # a unit is on its way, with which the cluster is not done
    else:
        rig.write()
        rig.freeze(name)
    began = time.monotonic()
    rig.run.send_signal(signal.SIGTERM)
    _, errors = rig.run.communicate(timeout=60)
    assert time.monotonic() - began < STOP_S + 2 * CALL_S
    assert "Stopping" in errors.splitlines()[0]
    assert "Traceback" not in errors
    if name == "target":
        assert rig.run.returncode == 1
        assert "stopped" in errors.splitlines()[-1]
    rig.thaw(name)
    status, printed = rig.file.run()
    assert status == 0, printed
    assert rig.is_whole()


@pytest.mark.parametrize("rig", [600.0], indirect=True)
def test_a_copy_that_has_nothing_to_commit_does_not_wait_for_its_source(rig: Rig) -> None:
    rig.freeze("source")
    threading.Event().wait(0.5)  # it looks for more partitions, in one call of 10 s
    began = time.monotonic()
    rig.run.send_signal(signal.SIGTERM)
    _, errors = rig.run.communicate(timeout=60)
    assert time.monotonic() - began < 2 * CALL_S
    assert rig.run.returncode == 0, errors
    rig.thaw("source")


@pytest.mark.parametrize("rig", [600.0], indirect=True)
def test_a_second_signal_ends_a_run_that_waits_for_a_cluster(rig: Rig) -> None:
    rig.freeze("target")
    rig.write()
    rig.run.send_signal(signal.SIGTERM)
    assert rig.run.stderr is not None
    assert wait_until(partial(_has_line, rig), CALL_S + 10)
    rig.run.send_signal(signal.SIGTERM)  # by a wrapper of the process that passes it on as well
    with pytest.raises(subprocess.TimeoutExpired):
        rig.run.wait(StopSignals.REPEAT_S)
    rig.run.send_signal(signal.SIGTERM)
    _, errors = rig.run.communicate(timeout=CALL_S)
    assert rig.run.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1].startswith("ended at once by a second signal; the next run")
    rig.thaw("target")
    assert rig.file.run()[0] == 0
    assert rig.is_whole()


def test_a_run_that_has_not_begun_hears_a_stop_at_once(rig: Rig) -> None:
    rig.killed()
    rig.freeze("target")
    rig.run = rig.file.spawn("--follow")
    status = Path(f"/proc/{rig.run.pid}/status")
    assert wait_until(lambda: _handles_sigterm(status.read_text()), 60)
    threading.Event().wait(0.5)  # it looks for the target's topics, in one call of 10 s
    rig.run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert _has_line(rig)
    _, errors = rig.run.communicate(timeout=60)
    assert time.monotonic() - began < STOP_S + CALL_S
    assert rig.run.returncode == 1
    assert errors.splitlines()[-1].startswith("lakehead: stopped: 127.0.0.1:")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["source", "target"])
def test_a_run_that_follows_outlives_a_cluster_that_is_away(rig: Rig, name: str) -> None:
    rig.freeze(name)
    threading.Event().wait(2.5 * CALL_S)
    assert rig.run.poll() is None, rig.killed()
    rig.thaw(name)
    rig.write()
    assert wait_until(rig.is_whole, 60), rig.killed()


def _handles_sigterm(status: str) -> bool:
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)


def _has_line(rig: Rig) -> bool:
    assert rig.run.stderr is not None
    return "Stopping" in rig.run.stderr.readline()
