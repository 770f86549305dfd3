"""A broker whose write-ahead log is a raw disk."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until

TOPIC = "on-disk"


@pytest.fixture
def raw_disk(tmp_path: Path) -> Iterator[Path]:
    """A loop device of 64 MiB of zeros."""
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("loop devices need root and losetup")
    file = tmp_path / "disk"
    file.write_bytes(bytes(64 * 2**20))
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(file)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no loop device can be had: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    yield device
    subprocess.run(["losetup", "--detach", str(device)], timeout=20, check=False)


def wait_more(producer: ProducerThread, count: int) -> bool:
    """Wait until so many more records are acknowledged."""
    target = producer.acknowledged + count
    return wait_until(lambda: producer.acknowledged >= target, 60)


def test_a_broker_on_a_raw_disk_loses_nothing_when_it_is_killed(
    raw_disk: Path, tmp_path: Path
) -> None:
    wal = f"block:{raw_disk}?format=yes&reservations=none&slices=2"
    broker = BrokerProcess(tmp_path, (*HASTY, "--wal", wal))
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, 2)
        history = History()
        producer = ProducerThread(
            "kept", broker.bootstrap, TOPIC, partitions=2, history=history, config=IDEMPOTENT
        )
        producer.start()
        for _ in range(3):
            assert wait_more(producer, 300), broker.log
            broker.kill()
            broker.start()
        assert producer.finish() == 0
        assert violations(history, read_log(broker.bootstrap, TOPIC, 2)) == []
        assert broker.stop() == 0, broker.log
        assert "wal_without_reservation" in broker.log
    finally:
        broker.kill()
