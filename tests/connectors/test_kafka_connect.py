"""Kafka Connect's own worker on our broker: a file goes through a topic into another file.

`make connect-test` runs it (SLOW=1). Needs Java 17; the jars are fetched once.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from bench.maven import MissingTool
from lakehead.connectors.runtime.kafka_clients import Cluster
from tests.connectors.connect_worker import ConnectWorker
from tests.support.broker_process import BrokerProcess
from tests.support.connect_runs import committed, values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

WAIT_S = 120.0
FILES = "org.apache.kafka.connect.file.FileStream"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def worker(broker: BrokerProcess, tmp_path: Path) -> Iterator[ConnectWorker]:
    try:
        worker = ConnectWorker(tmp_path, broker.bootstrap)
    except MissingTool as missing:
        pytest.skip(str(missing))
    with worker.process:
        yield worker


def test_a_file_goes_through_a_topic_into_a_file_over_kills(
    broker: BrokerProcess, worker: ConnectWorker, tmp_path: Path
) -> None:
    Cluster({"bootstrap.servers": broker.bootstrap}).create_topic("lines", 1, {})
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = [f"line {n}" for n in range(6000)]
    source.write_text("".join(f"{line}\n" for line in lines[:2000]))
    both = {"tasks.max": "1"}
    reads = {"file": str(source), "topic": "lines", "batch.size": "100"}
    exactly = {"exactly.once.support": "required", "transaction.boundary": "poll"}
    writes = {"file": str(target), "topics": "lines"}
    reads |= {"connector.class": f"{FILES}SourceConnector", **both, **exactly}
    writes |= {"connector.class": f"{FILES}SinkConnector", **both}
    assert wait_until(lambda: worker.put_config("reads", reads) is not None, WAIT_S)
    assert wait_until(lambda: worker.put_config("writes", writes) is not None, WAIT_S)

    def arrived(wanted: list[str]) -> bool:
        return target.exists() and set(target.read_text().splitlines()) >= set(wanted)

    assert wait_until(lambda: arrived(lines[:2000]), WAIT_S), worker.process.log.read_text()[-3000:]
    assert worker.states("reads") == ["RUNNING", "RUNNING"]
    assert worker.states("writes") == ["RUNNING", "RUNNING"]
    for part in (2000, 4000):
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines[part : part + 2000]))
        # Somewhere in the middle of them.
        assert wait_until(partial(_has_more, broker, part), WAIT_S)
        worker.process.kill()
        worker.process.start()
    assert wait_until(lambda: arrived(lines), WAIT_S), worker.process.log.read_text()[-3000:]
    # The source is exact. The sink of files is not: it appends again what it had not yet noted.
    assert [value.decode() for value in values(broker.bootstrap, "lines")] == lines
    assert set(target.read_text().splitlines()) == set(lines)
    kept = committed(broker.bootstrap, "connect-offsets")
    last = [message for message in kept if b"in.txt" in (message.key() or b"")][-1]
    assert json.loads(last.value() or b"") == {"position": source.stat().st_size}
    assert json.loads(last.key() or b"") == ["reads", {"filename": str(source)}]


def _has_more(broker: BrokerProcess, count: int) -> bool:
    return len(values(broker.bootstrap, "lines")) > count


def test_its_topics_are_compacted_and_a_new_worker_knows_its_connectors(
    broker: BrokerProcess, worker: ConnectWorker, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\n")
    config = {
        "connector.class": f"{FILES}SourceConnector",
        "file": str(tmp_path / "in.txt"),
        "topic": "t",
    }
    assert wait_until(lambda: worker.put_config("kept", config) is not None, WAIT_S)
    assert wait_until(lambda: worker.states("kept") == ["RUNNING", "RUNNING"], WAIT_S)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names = ("connect-configs", "connect-offsets", "connect-status")
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found = admin.describe_configs(asked)
    assert [found[one].result(20)["cleanup.policy"].value for one in asked] == ["compact"] * 3
    worker.process.stop()
    broker.kill()
    broker.start()
    worker.process.start()
    assert wait_until(lambda: worker.states("kept") == ["RUNNING", "RUNNING"], WAIT_S)
    assert worker.get("/connectors/kept/config")["topic"] == "t"
    assert wait_until(lambda: values(broker.bootstrap, "t") == [b"one"], WAIT_S)
