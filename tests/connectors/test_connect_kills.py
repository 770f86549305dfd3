"""`lakehead connect run` killed at any moment, the broker too: each record once.

`make connect-test` runs it (SLOW=1); CONNECT_KILLS=n and CONNECT_SEED=n choose others.
"""

import gzip
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.s3_server import S3Server
from lakehead.connectors.runtime.kafka_clients import Cluster
from lakehead.storage.failpoints import KILLED
from tests.support.broker_process import HASTY, KEEPING, BrokerProcess
from tests.support.connect_runs import RUN_SECONDS_MAX, ConnectFile, committed, ended, values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("CONNECT_KILLS", "12"))
SEED = int(os.environ.get("CONNECT_SEED", "1"))
LIVE_S_MAX = 6.0
TRANSACTIONS = ("connect_transaction_written", "connect_transaction_committed")
FLAGS = (*HASTY, *(text for name, value in KEEPING.items() for text in (f"--{name}", value)))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    pair = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        broker = BrokerProcess(tmp_path / name, FLAGS)
        broker.start()
        pair.append(broker)
    yield pair[0], pair[1]
    for broker in pair:
        broker.kill()


def campaign(
    file: ConnectFile, rng: random.Random, broker: BrokerProcess, failpoints: tuple[str, ...]
) -> None:
    """Run again and again; each run is killed: at each fail-point while there is much to do, then
    at some moment of its life, or at a fail-point. Now and then the broker is killed, too.
    """
    for kill in range(KILLS):
        early = failpoints[kill : kill + 1]
        if early or rng.random() < 0.4:
            name = early[0] if early else rng.choice(failpoints)
            process = file.spawn(failpoint=f"{name}:{rng.randint(1, 3)}")
        else:
            process = file.spawn()
            threading.Timer(rng.uniform(0.5, LIVE_S_MAX), process.kill).start()
        if kill % 4 == 3:
            broker.kill()
            broker.start()
        out, err = process.communicate(timeout=RUN_SECONDS_MAX)
        assert process.returncode in ({KILLED} if early else {0, -9, KILLED}), out + err
        assert not early or file.opened().plan().works
    status, text = file.run()
    assert status == 0, text


def test_lines_of_files_in_a_bucket_are_there_once(
    brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path, s3_server: S3Server
) -> None:
    import obstore

    from lakehead.storage.object_store.s3.client import object_client
    from lakehead.storage.object_store.s3.settings import parse_uri

    rng = random.Random(SEED)
    broker, _ = brokers
    place = f"s3://{s3_server.bucket}/in"
    bucket = object_client(parse_uri(place))
    expected: list[str] = []
    for part in range(6):
        ids = [f"{part}-{n}" for n in range(20_000)]
        expected += ids
        if part % 3 == 2:
            body = ("id,pad\n" + "".join(f'{one},"x\ny"\n' for one in ids)).encode()
            name = f"{part}.csv"
        else:
            body = "".join(json.dumps({"id": one, "pad": "x"}) + "\n" for one in ids).encode()
            name = f"{part}.jsonl"
        if part % 2:
            body, name = gzip.compress(body), f"{name}.gz"
        obstore.put(bucket, name, body)
    file = ConnectFile(
        tmp_path / "lines.toml",
        f"""
        name = "lines"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "files"
        source.path = "{place}"
        source.key = ["id"]
        sink.type = "topic"
        sink.topic = "lines"
        sink.partitions = 3
        run.transaction_bytes = 200_000
        """,
    )
    campaign(file, rng, broker, ("connect_batch_sent", *TRANSACTIONS))
    found = [str(json.loads(value)["id"]) for value in values(broker.bootstrap, "lines")]
    assert len(found) == len(expected)
    assert sorted(found) == sorted(expected)


def test_a_topic_of_another_cluster_is_copied_once(
    brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path
) -> None:
    here, there = brokers
    Cluster({"bootstrap.servers": here.bootstrap}).create_topic("orders", 3, {})
    producer = Producer({"bootstrap.servers": here.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(30)
    for unit in range(60):
        producer.begin_transaction()
        for n in range(1000):
            producer.produce("orders", b"%d-%d" % (unit, n), partition=n % 3)
            producer.poll(0)
        if unit % 5 == 4:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    file = ConnectFile(
        tmp_path / "mirror.toml",
        f"""
        name = "mirror"
        kafka.bootstrap.servers = "{here.bootstrap}"
        source.type = "topic"
        source.topics = ["orders"]
        sink.type = "topic"
        sink.topic = "{{topic}}"
        sink.partitions = 3
        sink.kafka.bootstrap.servers = "{there.bootstrap}"
        run.transaction_bytes = 20_000
        """,
    )
    campaign(file, random.Random(SEED), there, ("connect_unit_written", *TRANSACTIONS))
    assert [(m.partition(), m.value()) for m in committed(there.bootstrap, "orders")] == [
        (m.partition(), m.value()) for m in committed(here.bootstrap, "orders")
    ]
    assert file.opened().plan().works == ()


def test_a_run_that_was_asleep_writes_nothing_more(
    brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path
) -> None:
    broker, _ = brokers
    (tmp_path / "in").mkdir()
    lines = [f'{{"id":{n}}}' for n in range(100_000)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    file = ConnectFile(
        tmp_path / "asleep.toml",
        f"""
        name = "asleep"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "files"
        source.path = "{tmp_path / "in"}"
        sink.type = "topic"
        sink.topic = "asleep"
        sink.partitions = 2
        run.transaction_bytes = 50_000
        """,
    )
    asleep = file.spawn("--follow")
    assert wait_until(lambda: bool(file.opened().positions()), 60)
    asleep.send_signal(signal.SIGSTOP)
    status, text = file.run()
    assert status == 0, text
    (tmp_path / "in" / "b.jsonl").write_text('{"id":100000}\n')
    asleep.send_signal(signal.SIGCONT)
    out, err = asleep.communicate(timeout=RUN_SECONDS_MAX)
    assert (asleep.returncode, out) == (1, "")
    assert "another run of connector asleep has started" in err
    assert len(err.splitlines()) == 1
    status, text = file.run()
    assert status == 0, text
    found = [value.decode() for value in values(broker.bootstrap, "asleep")]
    assert sorted(found) == sorted([*lines, '{"id":100000}'])


def test_a_run_that_follows_ends_cleanly(
    brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path
) -> None:
    broker, _ = brokers
    (tmp_path / "in").mkdir()
    growing = tmp_path / "in" / "a.jsonl"
    growing.write_text("0\n")
    file = ConnectFile(
        tmp_path / "growing.toml",
        f"""
        name = "growing"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "files"
        source.path = "{growing.parent}"
        source.changed = "append"
        sink.type = "topic"
        sink.topic = "growing"
        sink.partitions = 1
        run.poll_seconds = 0.05
        """,
    )
    for number in range(1, 4):
        process = file.spawn("--follow", "--json")
        with growing.open("a") as lines:
            lines.write(f"{number}\n")
        assert wait_until(partial(_has, file, number), 60)
        status, text = ended(process)
        assert status == 0, text
        printed, *said = text.splitlines()
        assert json.loads(printed)["records"] >= 1
        assert [line.partition(": ")[0] for line in said] == ["Stopping"]
    assert values(broker.bootstrap, "growing") == [b"0", b"1", b"2", b"3"]


def _has(file: ConnectFile, number: int) -> bool:
    positions = file.opened().positions().values()
    return any(position["line"] == number + 2 for position in positions)
