"""Objects in a folder are durable as soon as any caller may conclude that they are there."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.storage.errors import ObjectExists, OutcomeUnknown, StoreUnavailable
from lakehead.storage.object_store.file import FileStore

KEY = "wal/0/0000000000/00000000000000000000"


class Flushes:
    """Flushes of folders: `before` is called with the path of each, `done` has those that
    succeeded.
    """

    def __init__(self) -> None:
        self.before: Callable[[Path], None] = lambda _: None
        self.done: list[Path] = []
        self._fsync = os.fsync

    def fsync(self, file: int) -> None:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            self._fsync(file)
            return
        path = Path(f"/proc/self/fd/{file}").readlink()
        self.before(path)
        self._fsync(file)
        self.done.append(path)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    flushes = Flushes()
    monkeypatch.setattr(os, "fsync", flushes.fsync)
    return flushes


class Gate:
    """Holds the first call in its thread until it is opened."""

    def __init__(self) -> None:
        self.reached, self._opened = asyncio.Event(), threading.Event()
        self._loop, self._is_first = asyncio.get_running_loop(), True

    def __call__(self, _: Path) -> None:
        is_first, self._is_first = self._is_first, False
        if is_first:
            self._loop.call_soon_threadsafe(self.reached.set)
            self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path.joinpath(*KEY.split("/")[:-1])
    path.mkdir(parents=True)
    return path


async def test_a_name_that_a_slow_put_has_taken_is_durable_before_another_put_says_so(
    tmp_path: Path, folder: Path, flushes: Flushes
) -> None:
    """A put of the log that is late is repeated, and acknowledged if its object exists."""
    store = FileStore(tmp_path)
    await store.create(KEY + "0", [b"to know the folder"])
    flushes.done.clear()
    gate = Gate()
    flushes.before = gate
    slow = asyncio.ensure_future(store.create(KEY, [b"a record"]))
    await gate.reached.wait()
    with pytest.raises(ObjectExists):
        await store.create(KEY, [b"a record"])
    assert flushes.done == [folder]
    gate.open()
    await slow
    await store.close()


@pytest.mark.parametrize("length", [8, 512 * 1024])
async def test_an_object_that_a_slow_put_has_made_is_durable_before_it_is_read(
    tmp_path: Path, folder: Path, flushes: Flushes, length: int
) -> None:
    """A put of the log that is late is looked for, and acknowledged if its object is found."""
    store = FileStore(tmp_path)
    await store.create(KEY + "0", [b"to know the folder"])
    flushes.done.clear()
    gate = Gate()
    flushes.before = gate
    slow = asyncio.ensure_future(store.create(KEY, [bytes(length)]))
    await gate.reached.wait()
    assert bytes(await store.get_range(KEY, 0, length)) == bytes(length)
    assert flushes.done == [folder]
    assert await store.get_suffix(KEY, 4) == (bytes(4), length)
    assert flushes.done == [folder], "once is enough"
    gate.open()
    await slow
    await store.close()


async def test_an_object_whose_name_was_not_flushed_exists_for_no_caller_until_it_is(
    tmp_path: Path, flushes: Flushes
) -> None:
    store = FileStore(tmp_path)
    await store.create(KEY + "0", [b"to know the folder"])

    def broken(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    flushes.before = broken
    with pytest.raises(OutcomeUnknown):
        await store.create(KEY, [b"a record"])
    with pytest.raises(StoreUnavailable):
        await store.create(KEY, [b"a record"])
    with pytest.raises(StoreUnavailable):
        await store.get(KEY)
    flushes.before = lambda _: None
    with pytest.raises(ObjectExists):
        await store.create(KEY, [b"a record"])
    assert await store.get(KEY) == b"a record"
    await store.close()


async def test_folders_that_another_writer_has_just_made_are_durable_with_the_first_object(
    tmp_path: Path, folder: Path, flushes: Flushes
) -> None:
    store = FileStore(tmp_path)
    await store.create(KEY, [b"a record"])
    assert flushes.done == [tmp_path, tmp_path / "wal", tmp_path / "wal" / "0", folder]
    await store.create(KEY + "1", [b"a record"])
    assert flushes.done[4:] == [folder]
    await store.close()
