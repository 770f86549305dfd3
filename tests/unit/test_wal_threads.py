"""The threads of a block WAL where the system has no other thread left."""

import threading
from pathlib import Path

import pytest

from lakehead.storage.errors import StorageError
from lakehead.storage.wal.device import FileDevice, IoThreads

SIZE = 64 * 1024


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, after: int) -> list[threading.Thread]:
    """Let so many more threads start; return those that do."""
    begun, start = list[threading.Thread](), threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if len(begun) == after:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    return begun


async def test_threads_that_began_end_if_the_others_could_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node tries to take a log over every few seconds: it would gather what is short."""
    begun = refuse_threads(monkeypatch, after=2)
    with pytest.raises(StorageError, match="can't start new thread"):
        IoThreads(3)
    for thread in begun:
        thread.join(10)
    assert [thread.is_alive() for thread in begun] == [False, False]


async def test_a_device_lets_its_locks_go_without_another_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else no node could recover the log as long as this process lives."""
    path = tmp_path / "wal"
    path.write_bytes(bytes(SIZE))
    device = FileDevice.open(path, IoThreads(2))
    other = FileDevice.open(path, IoThreads(2))
    assert device.lock(0, SIZE)
    assert not other.lock(0, SIZE)
    refuse_threads(monkeypatch, after=0)
    await device.close()
    assert other.lock(0, SIZE)
    await other.close()
