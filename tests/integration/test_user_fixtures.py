"""The fixtures and the context manager for tests of programs that use Kafka."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

import lakehead
from lakehead.broker.testing import BrokerGone, LakeheadBroker, running_broker
from lakehead.storage.errors import LakeheadError
from tests.support.user_tests import ROOT, run_user_tests
from tests.support.waiting import wait_until

USER_TESTS = """
    import pytest

    @pytest.fixture(scope="session")
    def lakehead_settings():
        return {"message.max.bytes": 1000, "num.partitions": 3}

    @pytest.mark.parametrize("word", ["a/b", "é ö", "c"])
    def test_topics(lakehead_broker, lakehead_topic, word):
        lakehead_broker.produce(lakehead_topic, [word, ("k", None)])
        records = lakehead_broker.records(lakehead_topic)
        assert [(r.key, r.value) for r in records] == [(None, word.encode()), (b"k", None)]

    def test_same_broker_and_settings(lakehead_broker, lakehead_topic):
        with pytest.raises(Exception, match="MSG_SIZE_TOO_LARGE"):
            lakehead_broker.produce(lakehead_topic, ["x" * 2000])
        assert lakehead_broker.records(lakehead_topic) == []

    def test_own(lakehead_brokers, lakehead_broker):
        own = lakehead_brokers({"auto.create.topics.enable": "false"})
        own.kill()
        assert lakehead_broker.is_running and not own.is_running
"""


def test_a_user_has_fixtures_in_two_workers_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(USER_TESTS))
    # A module of the user's with a name of ours, which the broker must not take for ours.
    (tmp_path / "storage.py").write_text("raise SystemExit('not this one')")
    done = run_user_tests(tmp_path, "--import-mode=importlib", workers=2)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_without_a_test_that_asks_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, lakehead.broker.testing.plugin; "
        "heavy = {'kio', 'lakehead.broker.node', 'confluent_kafka'} | "
        "{'obstore', 'numpy', 'structlog'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def broker() -> Iterator[LakeheadBroker]:
    with running_broker() as broker:
        folder = broker.folder
        yield broker
    assert not broker.is_running
    assert not folder.exists()


def test_a_broker_that_is_killed_has_what_it_acknowledged(broker: LakeheadBroker) -> None:
    broker.create_topic("orders", partitions=2, configs={"retention.ms": "-1"})
    broker.produce("orders", [(f"k{n}", f"v{n}") for n in range(100)])
    address = broker.bootstrap_servers
    broker.kill()
    with pytest.raises(BrokerGone):
        broker.flush()
    broker.start()
    assert broker.bootstrap_servers == address
    records = broker.records("orders", at_least=100)
    assert sorted(int((r.key or b"")[1:]) for r in records) == list(range(100))
    broker.flush()
    assert lakehead.scan(broker.path, "orders").read_all().num_rows == 100
    with pytest.raises(TimeoutError, match="records after 0 s, not 101"):
        broker.records("orders", at_least=101, timeout_s=0.0)
    broker.delete_topic("orders")
    with pytest.raises(KeyError, match="does not exist: orders"):
        broker.records("orders")


def test_transactions_that_are_open_or_aborted_are_not_among_the_records(
    broker: LakeheadBroker,
) -> None:
    broker.create_topic("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "one"})
    producer.init_transactions(30)
    for value, end in ((b"no", producer.abort_transaction), (b"yes", None)):
        producer.begin_transaction()
        producer.produce("t", value)
        producer.flush()
        if end is not None:
            end(30)
    assert broker.records("t") == []
    producer.commit_transaction(30)
    assert [record.value for record in broker.records("t", at_least=1)] == [b"yes"]


def test_a_wrong_setting_is_said(tmp_path: Path) -> None:
    with pytest.raises(BrokerGone, match="unknown setting: no such"):
        LakeheadBroker(tmp_path, {"no such": 1}).start()


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LakeheadError, match=f"cannot listen on .*:{port}"):
            LakeheadBroker(tmp_path, {"port": port}).start()


def test_a_broker_ends_with_the_tests_that_are_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lakehead.testing import LakeheadBroker\n"
        "broker = LakeheadBroker(Path(sys.argv[1])).start()\n"
        "print(broker.bootstrap_servers, flush=True); time.sleep(600)"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    try:
        assert tests.stdout is not None
        assert tests.stdout.readline()
        (child,) = psutil.Process(tests.pid).children()
        assert "node_process" in " ".join(child.cmdline())
    finally:
        os.kill(tests.pid, signal.SIGKILL)
        tests.communicate()
    assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 30)
