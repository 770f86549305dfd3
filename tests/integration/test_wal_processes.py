"""Several processes on one file: each writes its own slice, and a taker ends the right one."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.wal import open_wal, take_wal
from lakehead.storage.wal.block_format import HOLDER_OFFSET, SECTOR, VolumeHeader
from lakehead.storage.wal.holder import Holder, HostProcesses
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
    wal = await open_wal(sys.argv[1], rng=random.Random(1), node_id=int(sys.argv[2]))
    async for _ in wal.recover():
        pass
    await wal.start(epoch=1, listener=Listener())
    for offset in range(1_000_000):
        wal.append(1, 1, offset, 1, b"%08d" % offset * (offset % 97))
        if wal.released_position - wal.trimmed_position > 300_000:
            await wal.trim(wal.released_position)
        while wal.pending_bytes > 20_000:
            await asyncio.sleep(0)
        if offset % 3 == 0:
            await asyncio.sleep(0)

asyncio.run(main())
"""


@contextmanager
def writer(uri: str, node_id: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that writes to the slice of a node until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, uri, str(node_id)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def lines(process: "subprocess.Popen[str]", count: int) -> list[int]:
    assert process.stdout is not None
    said = (line for line in process.stdout if line.strip().isdecimal())  # between lines of the log
    return [int(next(said)) for _ in range(count)]


def rest(process: "subprocess.Popen[str]") -> list[int]:
    """What a process that has ended had said, whole lines only."""
    assert process.stdout is not None
    text = process.stdout.read()
    return [int(line) for line in text.split("\n")[:-1] if line.isdecimal()]


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_the_holder_is_killed_and_nothing_it_released_is_lost(
    tmp_path: Path, is_stopped: bool
) -> None:
    """A stopped process is ended too: SIGKILL needs no cooperation."""
    uri = f"block:{tmp_path / 'wal'}?size=8MiB&slices=4"
    with writer(uri, 0) as victim, writer(uri, 1) as neighbour:
        said = await asyncio.to_thread(lines, victim, 30)
        before = await asyncio.to_thread(lines, neighbour, 5)
        if is_stopped:
            victim.send_signal(signal.SIGSTOP)
        wal = await take_wal(uri, node_id=0, cluster_id="")
        assert victim.wait(timeout=10) == -signal.SIGKILL
        said += rest(victim)
        records = await recovered(wal)
        end = records[-1].end_position if records else wal.trimmed_position
        assert end >= said[-1]
        offsets = [r.base_offset for r in records]
        assert not offsets or offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        after = await asyncio.to_thread(lines, neighbour, 5)
        assert after[0] > before[-1], "the neighbour writes on"
        assert neighbour.poll() is None
        await wal.trim(end)
        await wal.close()
        assert await recovered(await take_wal(uri, node_id=0, cluster_id="")) == []


async def test_a_slice_is_opened_by_one_process_at_a_time(tmp_path: Path) -> None:
    uri = f"block:{tmp_path / 'wal'}?size=4MiB&slices=2"
    with writer(uri, 0) as holder:
        await asyncio.to_thread(lines, holder, 1)
        with pytest.raises(SettingsError, match=f"in use by process {holder.pid}"):
            await open_wal(uri, rng=random.Random(1), node_id=0)
        assert holder.poll() is None


def test_a_process_that_has_the_pid_of_a_dead_holder_is_left_alone() -> None:
    processes = HostProcesses()
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            me = processes.current()
            for stranger in (
                replace(me, pid=innocent.pid),  # another start time
                replace(me, pid=innocent.pid, boot_id=b"x" * 16),
                replace(me, pid=0),
                replace(me, pid=2**22 - 1),
            ):
                assert not processes.kill(stranger)
            with pytest.raises(StorageError, match="another container"):
                processes.kill(replace(me, pid=innocent.pid, pid_namespace=1))
            assert innocent.poll() is None
        finally:
            innocent.kill()


async def test_a_process_that_takes_its_own_slice_is_told(tmp_path: Path) -> None:
    uri = f"block:{tmp_path / 'wal'}?size=2MiB"
    wal = await open_wal(uri, rng=random.Random(1))
    with pytest.raises(StorageError, match="this process writes to the WAL"):
        await take_wal(uri, node_id=0, cluster_id="")
    await append_released(wal, await started(wal, 1), b"unharmed")
    await wal.close()


async def test_a_lock_without_a_signature_is_waited_for_then_named(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    uri = f"block:{path}?size=2MiB"
    with writer(uri, 0) as holder:
        await asyncio.to_thread(lines, holder, 1)
        header = VolumeHeader.decode(memoryview(path.read_bytes()[:SECTOR]))
        assert header is not None
        at = header.slices[0].start + HOLDER_OFFSET
        with path.open("r+b") as file:
            file.seek(at)
            signature = file.read(SECTOR)
            file.seek(at)
            file.write(bytes(SECTOR))
        with pytest.raises(StorageError, match="not signed it"):
            await take_wal(uri, node_id=0, cluster_id="", timeout_s=0.3)
        assert holder.poll() is None
        named = Holder.decode(memoryview(signature), header.volume_id)
        assert named is not None
        assert named.pid == holder.pid


async def test_nodes_of_a_host_that_start_at_once_share_the_file(tmp_path: Path) -> None:
    """One makes the file; the others wait for it and add their slices."""
    uri = f"block:{tmp_path / 'wal'}?size=8MiB&slices=4"
    wals = await asyncio.gather(*(open_wal(uri, rng=random.Random(n), node_id=n) for n in range(4)))
    for node_id, wal in enumerate(wals):
        await append_released(wal, await started(wal, 1), b"%d" % node_id)
        await wal.close()
    for node_id in range(4):
        wal = await open_wal(uri, rng=random.Random(1), node_id=node_id)
        assert [bytes(r.payload) for r in await recovered(wal)] == [b"%d" % node_id]
        await wal.close()


# ------------------------------------------------------------------ growing a file


async def test_a_file_grows_when_asked_and_never_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    wal = await open_wal(f"block:{path}?size=2MiB", rng=random.Random(1))
    end = await append_released(wal, await started(wal, 1), b"kept")
    await wal.close()
    grown = f"block:{path}?size=4MiB&grow=yes"
    wal = await open_wal(grown, rng=random.Random(1))
    assert path.stat().st_size == 4 * 2**20
    assert path.stat().st_blocks * 512 >= 4 * 2**20
    assert wal.capacity < 2 * 2**20, "it holds data"
    assert [r.end_position for r in await recovered(wal)] == [end]
    await wal.trim(end)
    await wal.close()
    wal = await open_wal(grown, rng=random.Random(1))
    await started(wal, 2)
    await wal.close()
    wal = await open_wal(grown, rng=random.Random(1))
    assert wal.capacity > 3 * 2**20
    await wal.close()
    with pytest.raises(SettingsError, match="cannot shrink"):
        await open_wal(f"block:{path}?size=3MiB&grow=yes", rng=random.Random(1))
    stranger = tmp_path / "stranger"
    stranger.write_bytes(b"precious")
    with pytest.raises(SettingsError, match="left alone"):
        await open_wal(f"block:{stranger}?size=4MiB&grow=yes", rng=random.Random(1))
    assert stranger.read_bytes() == b"precious"
