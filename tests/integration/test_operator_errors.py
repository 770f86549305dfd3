"""What an operator can do wrong, or a disk can do to them: one clear line, nothing lost.

`lakehead start` that cannot work ends with a status that is not 0 and one line on standard error.
Tests that need file systems of their own mount a tmpfs, and are skipped where that is not allowed.
"""

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.refusal import refusal
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until

TOPIC = "kept"
SECTOR = 4096


@contextmanager
def records_in(folder: Path, flags: tuple[str, ...] = HASTY) -> Iterator[BrokerProcess]:
    """A folder in which a broker took records and stopped; they must still be there at the end."""
    broker = BrokerProcess(folder, flags)
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, 1)
        history = History()
        producer = producing(broker, history)
        assert wait_until(lambda: producer.acknowledged >= 500, 30), broker.log
        assert producer.finish() == 0
        broker.stop()
        yield broker
        if not broker.is_running:
            broker.start()
        log = read_log(broker.bootstrap, TOPIC, 1)
        assert violations(history, log) == []
        assert len(log[0]) >= 500
    finally:
        broker.kill()


def producing(broker: BrokerProcess, history: History, value_bytes: int = 200) -> ProducerThread:
    producer = ProducerThread(
        "kept",
        broker.bootstrap,
        TOPIC,
        partitions=1,
        history=history,
        config=IDEMPOTENT,
        value_bytes=value_bytes,
    )
    producer.start()
    return producer


@pytest.fixture
def disk(tmp_path: Path) -> Iterator["Disk"]:
    """A small file system of its own, unmounted at the end."""
    made = Disk(tmp_path / "disk")
    if not made.mount("size=160m"):
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield made
    finally:
        made.unmount()


class Disk:
    """A tmpfs at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def mount(self, options: str) -> bool:
        return self._run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder))

    def remount(self, options: str) -> None:
        assert self._run("mount", "-o", f"remount,{options}", str(self.folder))

    def unmount(self) -> None:
        self._run("umount", "--lazy", str(self.folder))

    @staticmethod
    def _run(*command: str) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_port_in_use(tmp_path: Path) -> None:
    with records_in(tmp_path), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refusal(tmp_path, "--port", port)


def test_a_port_that_is_none(tmp_path: Path) -> None:
    assert "port" in refusal(tmp_path, "--port", "70000")


def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert str(tmp_path / "data") in refusal(tmp_path)


def test_a_store_of_an_unknown_kind(tmp_path: Path) -> None:
    assert "floppy" in refusal(tmp_path, "--store", "floppy:/a")


def test_a_write_ahead_log_of_an_unknown_kind(tmp_path: Path) -> None:
    assert "floppy" in refusal(tmp_path, "--wal", "floppy:/a")


def test_a_folder_held_by_another_broker(tmp_path: Path) -> None:
    with records_in(tmp_path) as broker:
        broker.start()
        assert f"node 0 is alive at {broker.bootstrap}" in refusal(tmp_path)
        assert str(tmp_path) in refusal(tmp_path, "--node.id", "1")
        other_store = refusal(tmp_path, "--store", f"file:{tmp_path}/other")
        assert "wal" in other_store
        assert broker.is_running


def test_metadata_written_by_a_newer_release(tmp_path: Path) -> None:
    with records_in(tmp_path):
        entries = sorted((tmp_path / "data/store/meta/log").iterdir())
        last = json.loads(entries[-1].read_text())
        newer = entries[-1].with_name(f"{int(entries[-1].stem) + 1:020d}.json")
        newer.write_text(json.dumps(last | {"version": last["version"] + 1}))
        line = refusal(tmp_path)
        assert "version" in line
        assert "newer" in line or "upgrade" in line
        newer.unlink()


def test_a_write_ahead_log_of_a_newer_release(tmp_path: Path) -> None:
    with records_in(tmp_path):
        wal = tmp_path / "data/wal"
        kept = wal.read_bytes()[: 2 * SECTOR]
        with wal.open("r+b") as file:
            for slot in (kept[:SECTOR], kept[SECTOR:]):
                version = struct.unpack_from(">H", slot, 8)[0] + 1
                content = slot[:8] + struct.pack(">H", version) + slot[10:-4]
                file.write(content + struct.pack(">I", crc32c(content)))
        assert "version" in refusal(tmp_path)
        with wal.open("r+b") as file:
            file.write(kept)


def test_a_write_ahead_log_that_is_something_else(tmp_path: Path) -> None:
    """A file given by mistake is refused, and not a byte of it is changed."""
    precious = tmp_path / "thesis.odt"
    precious.write_bytes(b"PK" + b"words " * 20_000)
    before = precious.read_bytes()
    assert "thesis.odt" in refusal(tmp_path, "--wal", f"block:{precious}")
    assert precious.read_bytes() == before


def test_a_write_ahead_log_without_its_store(tmp_path: Path) -> None:
    """A log of one cluster is not taken for the log of another."""
    with records_in(tmp_path):
        assert "cluster" in refusal(tmp_path, "--store", f"file:{tmp_path}/empty")


def test_a_store_that_cannot_be_written(disk: Disk) -> None:
    with records_in(disk.folder) as broker:
        disk.remount("ro")
        assert "ead-only" in refusal(disk.folder)
        disk.remount("rw")
        broker.start()


def test_a_disk_too_small_for_the_write_ahead_log(disk: Disk) -> None:
    disk.remount("size=8m")
    assert "o space left" in refusal(disk.folder)
    disk.remount("size=160m")
    with records_in(disk.folder):
        pass


def test_a_disk_that_fills_up_while_producers_run(disk: Disk) -> None:
    """The broker slows down to a stop, loses nothing, and goes on when there is room again."""
    disk.remount("size=100m")
    broker = BrokerProcess(disk.folder)
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, 1)
        history = History()
        producer = producing(broker, history, value_bytes=50_000)
        assert wait_until(lambda: is_full(disk.folder), 60), "the disk does not fill up"
        assert broker.is_running, broker.log
        disk.remount("size=4g")
        mark = producer.acknowledged
        assert wait_until(lambda: producer.acknowledged > mark + 1000, 60), broker.log
        assert producer.finish() == 0
        assert violations(history, read_log(broker.bootstrap, TOPIC, 1)) == []
        assert broker.stop() == 0, broker.log
    finally:
        broker.kill()


def test_a_kill_on_a_full_disk(disk: Disk) -> None:
    """A broker that is killed while the disk is full has what it acknowledged when it is back."""
    disk.remount("size=100m")
    broker = BrokerProcess(disk.folder)
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, 1)
        history = History()
        producer = producing(broker, history, value_bytes=50_000)
        assert wait_until(lambda: is_full(disk.folder), 60), "the disk does not fill up"
        broker.kill()
        disk.remount("size=4g")
        broker.start()
        assert producer.finish() == 0
        assert violations(history, read_log(broker.bootstrap, TOPIC, 1)) == []
    finally:
        broker.kill()


def is_full(folder: Path) -> bool:
    """Return true if less than one upload (1 MiB) fits on the file system of `folder`."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize < 1 << 20
