"""The block WAL on real files: making them, refusing them, locks, full disks, kill -9."""

import asyncio
import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lakehead.storage.errors import (
    SettingsError,
    StorageError,
    UnsupportedFormat,
    WalCorrupted,
    WalFailed,
)
from lakehead.storage.wal import BlockWal, WriteAheadLog, open_wal
from lakehead.storage.wal.block_format import SECTOR, VolumeHeader
from tests.support.wal_tools import append_released, recovered, started

WRITER = """
import asyncio, random, sys
from lakehead.storage.wal import open_wal

class Listener:
    def released(self, position):
        print(position, flush=True)
    def failed(self, error):
        raise error

async def main():
    wal = await open_wal(sys.argv[1], rng=random.Random(1))
    async for _ in wal.recover():
        pass
    await wal.start(epoch=int(sys.argv[2]), listener=Listener())
    for offset in range(100_000):
        wal.append(1, 1, offset, 1, b"%08d" % offset * (offset % 997))
        if wal.released_position - wal.trimmed_position > 500_000:
            await wal.trim(wal.released_position)
        while wal.pending_bytes > 200_000:
            await asyncio.sleep(0)
        if offset % 3 == 0:
            await asyncio.sleep(0)

asyncio.run(main())
"""


async def open_at(path: Path, size: str = "1MiB", node_id: int = 0) -> WriteAheadLog:
    uri = f"block:{path}?size={size}"
    return await open_wal(uri, rng=random.Random(1), node_id=node_id, cluster_id="c")


async def test_a_new_file_has_its_size_and_every_block_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "wal"
    wal = await open_at(path, "3MiB")
    assert path.stat().st_size == 3 * 2**20
    assert path.stat().st_blocks * 512 >= 3 * 2**20
    assert wal.capacity == 3 * 2**20 - 64 * 1024 - 3 * SECTOR
    await wal.close()
    assert list(path.parent.iterdir()) == [path]
    wal = await open_at(path, "8MiB")
    assert wal.capacity < 3 * 2**20, "the size is fixed when the file is made"
    await wal.close()


async def test_a_file_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    wal = await open_at(tmp_path / "wal")
    with pytest.raises(SettingsError, match="in use by process") as caught:
        await open_at(tmp_path / "wal")
    assert "\n" not in str(caught.value)
    await wal.close()
    await (await open_at(tmp_path / "wal")).close()


@pytest.mark.parametrize("content", [b"", b"something of the user's", bytes(2**20)])
async def test_what_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises((SettingsError, StorageError), match="precious"):
        await open_at(path)
    assert path.read_bytes() == content


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="neither a file nor a disk"):
        await open_at(tmp_path)


async def test_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    await (await open_at(tmp_path / "wal")).close()
    with pytest.raises(SettingsError, match="node 0, not of node 4"):
        await open_at(tmp_path / "wal", node_id=4)
    with pytest.raises(SettingsError, match="cluster c, not of other"):
        await open_wal(f"block:{tmp_path / 'wal'}", rng=random.Random(1), cluster_id="other")


async def test_a_newer_volume_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    await (await open_at(path)).close()
    content = bytearray(path.read_bytes())
    header = VolumeHeader.decode(memoryview(content)[:SECTOR])
    assert header is not None
    content[8:10] = (9).to_bytes(2, "big")
    from crc32c import crc32c

    content[4092:4096] = crc32c(content[:4092]).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormat, match="version 9"):
        await open_at(path)


async def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    await (await open_at(path)).close()
    os.truncate(path, 2**19)
    with pytest.raises(WalCorrupted, match="when it was made"):
        await open_at(path)


@pytest.mark.parametrize("size", [0, 4, 1 << 20])
async def test_a_draft_of_a_crashed_maker_is_made_again(tmp_path: Path, size: int) -> None:
    (tmp_path / "wal.new").write_bytes(bytes(size))
    await (await open_at(tmp_path / "wal")).close()
    assert not (tmp_path / "wal.new").exists()


async def test_of_two_makers_none_destroys_the_other(tmp_path: Path) -> None:
    results = await asyncio.gather(
        *(open_at(tmp_path / "wal") for _ in range(4)), return_exceptions=True
    )
    wals = [r for r in results if isinstance(r, BlockWal)]
    errors = [r for r in results if not isinstance(r, BlockWal)]
    assert len(wals) <= 1
    assert all(isinstance(e, SettingsError) for e in errors)
    for wal in wals:
        await append_released(wal, await started(wal, 1), b"x")
        await wal.close()
        assert len(await recovered(await open_at(tmp_path / "wal"))) == 1


@pytest.mark.parametrize(
    "uri", ["block:", "file:/tmp/x", "nonsense", "memory:/x", "block:/x?size=1", "block:/x?siez=1g"]
)
async def test_a_wrong_address_is_refused(uri: str) -> None:
    with pytest.raises(SettingsError, match=uri.replace("?", r"\?")):
        await open_wal(uri, rng=random.Random(1))


async def test_without_direct_io_writes_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wal"
    synced: list[int] = []
    real_sync = os.fdatasync

    def counting(fd: int) -> None:
        synced.append(fd)
        real_sync(fd)

    wal = await open_without_direct(path, monkeypatch)
    monkeypatch.setattr(os, "fdatasync", counting)
    listener = await started(wal, 1)
    before = len(synced)
    end = await append_released(wal, listener, b"x" * 9000)
    assert len(synced) == before + 1
    await wal.close()
    assert [r.end_position for r in await recovered(await open_at(path))] == [end]


async def open_without_direct(path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteAheadLog:
    """Open as on a file system that refuses O_DIRECT."""
    await (await open_at(path)).close()
    real_open = os.open

    def refusing(target: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real_open(target, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    return await open_at(path)


async def test_a_flush_error_is_final_though_the_next_flush_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = await open_without_direct(tmp_path / "wal", monkeypatch)
    listener = await started(wal, 1)
    kept = await append_released(wal, listener, b"kept")
    real_sync, calls = os.fdatasync, 0

    def failing_once(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(errno.EIO, "Input/output error")
        real_sync(fd)

    monkeypatch.setattr(os, "fdatasync", failing_once)
    wal.append(1, 1, 1, 1, b"lost")
    assert isinstance(await listener.wait_failed(), WalFailed)
    with pytest.raises(WalFailed):
        wal.append(1, 1, 2, 1, b"never")
    await wal.close()
    assert (calls, listener.positions) == (1, [kept]), "not tried again, and no header either"


async def test_a_flush_error_is_never_told_to_another_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells it once per open file. Were flushes to run beside each other, the error of
    an older block could go to a newer one, and the older one would be acknowledged and lost.
    """
    wal = await open_without_direct(tmp_path / "wal", monkeypatch)
    listener = await started(wal, 1)
    real_write = os.pwrite
    both = threading.Barrier(2, timeout=0.3)
    mine, lost, newer_flushed = threading.local(), threading.Event(), threading.Event()

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        mine.is_older = b"older" in bytes(data)
        if mine.is_older:
            lost.set()  # its pages will not reach the disk
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()
        return real_write(fd, data, offset)

    def fdatasync(_: int) -> None:
        if mine.is_older:
            newer_flushed.wait(0.3)
        if lost.is_set():
            lost.clear()
            newer_flushed.set()
            threading.Event().wait(0.1)  # a thread may pause before it can tell anybody
            raise OSError(errno.EIO, "Input/output error")
        newer_flushed.set()

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    wal.append(1, 1, 0, 1, b"older" * 2000)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wal.append(1, 1, 1, 1, b"newer" * 2000)
    await listener.wait_failed()
    await wal.close()
    assert listener.positions == []


def run_limited(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the same path of the code."""
    done = run_limited(
        "import asyncio, random, resource, sys\n"
        "from lakehead.storage.wal import open_wal\n"
        "from lakehead.storage.errors import StorageError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))\n"
        "try:\n"
        "    asyncio.run(open_wal(sys.argv[1], rng=random.Random(1)))\n"
        "except StorageError as error:\n"
        "    print(error)\n",
        f"block:{tmp_path / 'wal'}?size=4MiB",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "no room for a WAL of 4194304 bytes" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_clear_line() -> None:
    done = run_limited(
        "import asyncio, random\n"
        "from lakehead.storage.wal import open_wal\n"
        "from lakehead.storage.errors import LakeheadError\n"
        "try:\n"
        "    asyncio.run(open_wal('block:/proc/version/wal', rng=random.Random(1)))\n"
        "except LakeheadError as error:\n"
        "    print(error)\n",
    )
    assert done.stdout.count("\n") == 1, done.stderr
    assert "/proc/version/wal" in done.stdout


async def test_what_was_released_survives_kill_9_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    uri = f"block:{path}?size=2MiB"
    rng = random.Random(8)
    for epoch in range(1, 7):
        released = await asyncio.to_thread(kill_a_writer, uri, epoch, rng.randrange(5, 120))
        wal = await open_wal(uri, rng=rng)
        records = await recovered(wal)
        for record in records:
            offset = record.base_offset
            assert bytes(record.payload) == b"%08d" % offset * (offset % 997)
        offsets = [r.base_offset for r in records]
        assert not offsets or offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        end = records[-1].end_position if records else wal.trimmed_position
        assert end >= released
        await wal.trim(end)
        await wal.close()


def kill_a_writer(uri: str, epoch: int, lines: int) -> int:
    """Kill a process after it has said so many times what is released; return the last."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, uri, str(epoch)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(lines)]
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().splitlines()
    writer.stdout.close()
    writer.wait(timeout=30)
    complete = [line for line in [*said, *rest[:-1]] if line.strip()]
    return int(complete[-1])
