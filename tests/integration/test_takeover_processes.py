"""A node process is killed, or stopped, while it acknowledges; others take over what it left."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.errors import StorageError, WalHolderEnding
from lakehead.storage.failpoints import KILLED
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import volume
from tests.support.engine_process import OPENED, fence, open_engine, unrecovered_wals
from tests.support.template_process import ForkedPython

ROOT = str(Path(__file__).parents[2])


@contextlib.contextmanager
def node_process(
    store: str, wal: str, node_id: int, first: int = 0, action: str = "", failpoint: str = ""
) -> Iterator["subprocess.Popen[str]"]:
    """A node that appends until it is ended."""
    arguments = [store, wal, str(node_id), str(first), *([action] if action else [])]
    process = ForkedPython(
        [sys.executable, "-m", "tests.support.engine_process", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, "LAKEHEAD_FAILPOINT": failpoint},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


class Acknowledged:
    """The end of what a process said it acknowledged, by stream."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._stdout = process.stdout
        self.ends = dict.fromkeys(range(OPENED), 0)

    def read(self, lines: int | None = None) -> None:
        """Read some lines, or all there are until the process ended."""
        seen = 0
        for line in self._stdout:
            words = line.split()
            if len(words) == 2 and line.endswith("\n") and all(map(str.isdecimal, words)):
                self.ends[int(words[0])] = int(words[1])
                seen += 1
            if lines is not None and seen >= lines:
                return


@contextlib.asynccontextmanager
async def node_that_takes(store: str, wal: str) -> AsyncIterator[tuple[StreamEngine, TaskScope]]:
    """Node 1, in this process, and the scope of its tasks, which end with it."""
    scope = TaskScope(lambda name, error: None)
    try:
        yield await open_engine(store, wal, 1, scope), scope
    finally:
        await scope.close()


async def check_streams(engine: StreamEngine, ends: dict[int, int]) -> None:
    """Open every stream and read it: all offsets, once, in order."""
    await engine.metadata.refresh()
    for stream in await engine.open_streams(range(OPENED)):
        assert stream.next_offset >= ends[stream.stream_id] > 0
        offset = 0
        while offset < stream.next_offset:
            for payload in await stream.fetch(offset, 1 << 20):
                header = read_header(payload)
                assert header.base_offset == offset
                offset = header.end_offset


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", ["block", "object"])
async def test_what_a_node_acknowledged_is_there_after_a_takeover(
    tmp_path: Path, kind: str, how: signal.Signals
) -> None:
    store = f"file:{tmp_path / 'store'}"
    wal = f"block:{tmp_path / 'wal'}?size=24MiB&slices=3" if kind == "block" else "object:"
    async with node_that_takes(store, wal) as (taker, _):
        with node_process(store, wal, 0) as victim:
            said = Acknowledged(victim)
            await asyncio.to_thread(said.read, 60)
            victim.send_signal(how)
            node = await fence(taker, 0)
            await taker.take_over(node, UnrecoveredWals(taker, wal).open)
            if how is signal.SIGSTOP and kind == "object":
                victim.send_signal(signal.SIGCONT)  # it wakes, and finds the log sealed
                await asyncio.sleep(0.2)
                victim.kill()
            victim.wait(timeout=30)
            said.read()
        await check_streams(taker, said.ends)
        assert taker.metadata.state.nodes[0].is_recovered
        await taker.close()


def showing(folder: Path, text: bytes) -> list[str]:
    """Return the files below a folder that show a text."""
    return [p.name for p in folder.rglob("*") if p.is_file() and text in p.read_bytes()]


@pytest.mark.parametrize("kind", ["block", "object"])
async def test_what_an_encrypting_node_acknowledged_is_there_after_a_takeover(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The taker has the same file of keys; the wrapping key has changed since the node started."""
    keys = tmp_path / "keys"
    add_key(keys, "first", rng=random.Random(1))
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_PROVIDER", "file")
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_FILE", str(keys))
    store = f"file:{tmp_path / 'store'}"
    wal = f"block:{tmp_path / 'wal'}?size=24MiB&slices=3" if kind == "block" else "object:"
    with node_process(store, wal, 0) as victim:
        said = Acknowledged(victim)
        await asyncio.to_thread(said.read, 60)
        add_key(keys, "second", rng=random.Random(2))
        async with node_that_takes(store, wal) as (taker, _):
            victim.kill()
            victim.wait(timeout=30)
            said.read()
            node = await fence(taker, 0)
            await taker.take_over(node, unrecovered_wals(taker, store, wal).open)
            await check_streams(taker, said.ends)
            await taker.close()
    assert showing(tmp_path, b"v" * 40) == []


async def test_a_stopped_process_is_ended_by_who_takes_over_on_its_machine(tmp_path: Path) -> None:
    """Else its clients' connections stay open, and they wait for it though others lead by then."""
    store, wal = f"file:{tmp_path / 'store'}", "object:"
    async with node_that_takes(store, wal) as (taker, _):
        with node_process(store, wal, 0, action="named") as victim:
            said = Acknowledged(victim)
            await asyncio.to_thread(said.read, 60)
            victim.send_signal(signal.SIGSTOP)
            await taker.take_over(await fence(taker, 0), UnrecoveredWals(taker, wal).open)
            assert victim.wait(timeout=30) == -signal.SIGKILL
            said.read()
        await check_streams(taker, said.ends)
        await taker.close()


async def test_takers_of_one_host_do_not_end_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds the slice held by the first, which lives: it leaves it alone."""
    monkeypatch.setattr(volume, "_RECOVERY_TIMEOUT_S", 0.1)
    store, wal = f"file:{tmp_path / 'store'}", f"block:{tmp_path / 'wal'}?size=24MiB&slices=3"
    async with node_that_takes(store, wal) as (taker, scope):
        with (
            node_process(store, wal, 0) as victim,
            node_process(store, wal, 2, OPENED) as neighbour,
        ):
            said = Acknowledged(victim)
            await asyncio.to_thread(said.read, 30)
            node = await fence(taker, 0)
            logs = UnrecoveredWals(taker, wal)
            held = await logs.open(node, taker._takeovers.owner_of(node))
            assert held is not None
            victim.wait(timeout=30)  # killed, or gone by itself when it saw that it was fenced
            with pytest.raises(StorageError, match="slice of node 0 is held by node 1"):
                await taker.take_over(node, logs.open)
            with pytest.raises(WalHolderEnding, match="by which node 1 recovers the log"):
                await open_engine(store, wal, 0, scope)
            await held.close()
            await taker.take_over(node, logs.open)
            said.read()
            assert neighbour.poll() is None
        await check_streams(taker, said.ends)


@pytest.mark.parametrize(
    ("kind", "failpoint"),
    [
        ("object", "left_log_opened"),
        ("object", "wal_objects_committed"),
        ("block", "left_log_opened"),
        ("block", "tail_inherited"),
        ("block", "tail_committed"),
    ],
)
async def test_a_taker_that_dies_is_followed_by_another(
    tmp_path: Path, kind: str, failpoint: str
) -> None:
    store = f"file:{tmp_path / 'store'}"
    wal = f"block:{tmp_path / 'wal'}?size=24MiB&slices=3" if kind == "block" else "object:"
    async with node_that_takes(store, wal) as (taker, _):
        with node_process(store, wal, 0) as victim:
            said = Acknowledged(victim)
            await asyncio.to_thread(said.read, 60)
            victim.kill()
            said.read()
        with node_process(store, wal, 2, action="take", failpoint=failpoint) as first:
            assert await asyncio.to_thread(first.wait, 60) == KILLED
        await taker.take_over(await fence(taker, 0), UnrecoveredWals(taker, wal).open)
        await check_streams(taker, said.ends)
        await taker.close()


async def test_an_owner_that_dies_while_it_hands_over_has_not_handed_over(tmp_path: Path) -> None:
    store, wal = f"file:{tmp_path / 'store'}", f"block:{tmp_path / 'wal'}?size=24MiB&slices=3"
    async with node_that_takes(store, wal) as (taker, _):
        with node_process(store, wal, 0, action="give", failpoint="hand_over_stopped") as owner:
            said = Acknowledged(owner)
            assert await asyncio.to_thread(owner.wait, 60) == KILLED
            said.read()
        state = await taker.metadata.refresh()
        assert all(stream.is_open for stream in list(state.streams.values())[:OPENED])
        await taker.take_over(await fence(taker, 0), UnrecoveredWals(taker, wal).open)
        await check_streams(taker, said.ends)


async def test_a_node_that_was_started_again_is_left_alone(tmp_path: Path) -> None:
    """A taker with an old view of the metadata meets the next start of the node at its slice."""
    store, wal = f"file:{tmp_path / 'store'}", f"block:{tmp_path / 'wal'}?size=24MiB&slices=3"
    async with node_that_takes(store, wal) as (taker, _):
        with node_process(store, wal, 0) as victim:
            await asyncio.to_thread(Acknowledged(victim).read, 30)
            victim.kill()
            node = await fence(taker, 0)
        with node_process(store, wal, 0) as again:
            said = Acknowledged(again)
            await asyncio.to_thread(said.read, 30)
            assert await taker.take_over(node, UnrecoveredWals(taker, wal).open) == 0
            with pytest.raises(StorageError, match="held by its node again"):
                await UnrecoveredWals(taker, wal).open(node, taker._takeovers.owner_of(node))
            await asyncio.to_thread(said.read, 30)
            assert again.poll() is None
