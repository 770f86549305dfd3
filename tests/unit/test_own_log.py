"""Promise: a node starts only on the log that holds what it acknowledged, whatever kind of log that
is, unless nothing is lost by another one or an operator has accepted the loss.

Real files, real stores in folders; a life ends as a killed process does, or cleanly.
"""

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import WalCorrupted, WrongLog
from lakehead.storage.metadata.additions import ADDITIONS
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    CloseStream,
    CommitObjects,
    DeleteTopic,
    FenceNode,
    RetireNode,
)
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import FileStore, MemoryStore
from lakehead.storage.stream import registration
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.recovery import Uncommitted, chosen_blocks
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import BlockWal, MemoryWal, WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.address import public_address
from lakehead.storage.wal.object.log_id import LogMarks
from tests.support.object_wal_tools import crashed, make_owner
from tests.support.wal_tools import started
from tests.unit.test_stream_engine import append, create_topic, read_all

LAZY = StorageSettings(upload_age_s=3600)
HOST = "host-of-the-test"
LASTING = ("block", "elsewhere")
"""Logs that may be another one the next time."""


class Host:
    """A cluster's store and the places where its nodes may have logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileStore(folder / "store")
        self._lives = 0

    def address(self, kind: str, name: str = "a") -> str:
        return {
            "block": f"block:{self.folder}/{name}.wal?size=2MiB",
            "elsewhere": f"object:file:{self.folder}/{name}.store",
            "shared": "object:",
            "memory": "memory:",
        }[kind]

    def copy(self, name: str, to: str) -> None:
        """Copy the logs of that name, of both kinds: as a snapshot does."""
        if (self.folder / f"{name}.wal").exists():
            shutil.copy(self.folder / f"{name}.wal", self.folder / f"{to}.wal")
        if (self.folder / f"{name}.store").exists():
            shutil.copytree(
                self.folder / f"{name}.store", self.folder / f"{to}.store", dirs_exist_ok=True
            )

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    async def state(self) -> MetadataImage:
        return (await self.metadata()).state

    async def metadata(self) -> MetadataLog:
        return await MetadataLog.open(
            self.store, writer_id="operator", clock=SystemClock(), rng=random.Random(self._lives)
        )

    @asynccontextmanager
    async def life(
        self,
        uri: str,
        *,
        node_id: int = 0,
        clean: bool = False,
        accept: int = -1,
        opens: bool = True,
        slices: str = "",
    ) -> AsyncIterator[tuple[StreamEngine, list[Stream]]]:
        """A life of a node, with both partitions of a topic unless it `opens` none."""
        self._lives += 1
        logs: list[WriteAheadLog] = []
        uri = uri + slices

        async def opener(owner: WalOwner) -> WriteAheadLog:
            logs.append(
                await open_wal(
                    uri,
                    rng=owner.rng,
                    node_id=node_id,
                    cluster_id=owner.cluster_id,
                    host_id=HOST,
                    owner=owner,
                )
            )
            return logs[-1]

        scope = TaskScope(lambda name, error: None)
        try:
            engine = await StreamEngine.open(
                store=self.store,
                open_wal=opener,
                node=NodeIdentity(
                    node_id=node_id,
                    host="h",
                    port=1,
                    host_id=HOST,
                    wal=public_address(uri),
                    accept_log_loss=accept,
                ),
                clock=SystemClock(),
                rng=random.Random(self._lives),
                settings=LAZY,
                scope=scope,
            )
            streams: list[Stream] = []
            if opens:
                state = await engine.metadata.commit_with(create_topic(2))
                streams = await engine.open_streams(list(state.topics["t"].partitions))
            yield engine, streams
            if clean:
                await engine.close()
        finally:
            await scope.close()
            for log in logs:
                if isinstance(log, BlockWal):
                    await log._device.close()

    async def refused(self, uri: str, *, accept: int = -1) -> str:
        """Return the refusal of a start, which has changed nothing."""
        before, files = await self.state(), self.files()
        with pytest.raises(WrongLog) as refusal:
            async with self.life(uri, accept=accept):
                pass
        assert await self.state() == before
        assert self.files() - files <= {"empty.store"}, "no file is made for a log that is refused"
        return str(refusal.value)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("other", ["block", "elsewhere", "shared", "memory"])
@pytest.mark.parametrize("kind", LASTING)
async def test_a_node_does_not_start_on_another_log_than_its_own(
    host: Host, kind: str, other: str
) -> None:
    """An empty one, one of another kind, in either order; and its own has all that it had."""
    own = host.address(kind)
    async with host.life(own) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        written = [0, await append(streams[0])]
        log_id = engine.metadata.state.nodes[0].log.log_id
    refusal = await host.refused(host.address(other, "empty"))
    assert log_id in refusal
    assert "t-0 epoch 0, t-1 epoch 0" in refusal
    assert public_address(own) in refusal
    assert "--accept-log-loss 0:0" in refusal
    assert "\n" not in refusal
    async with host.life(own) as (_, streams):
        assert await read_all(streams[0]) == written


@pytest.mark.parametrize("kind", LASTING)
async def test_a_log_that_another_life_of_the_node_wrote_is_refused(host: Host, kind: str) -> None:
    """Two logs that were both the node's, one after the other: only the last one counts."""
    async with host.life(host.address(kind, "a"), clean=True) as (_, streams):
        await append(streams[0])
    async with host.life(host.address(kind, "b")) as (_, streams):
        written = [0, await append(streams[0])]
    refusal = await host.refused(host.address(kind, "a"))
    assert "is another log" in refusal
    assert "of epoch 0" in refusal
    async with host.life(host.address(kind, "b")) as (_, streams):
        assert await read_all(streams[0]) == written


@pytest.mark.parametrize("kind", LASTING)
async def test_an_older_state_of_the_log_is_refused(host: Host, kind: str) -> None:
    """A snapshot that was taken before the last start."""
    async with host.life(host.address(kind), clean=True) as (_, streams):
        await append(streams[0])
    host.copy("a", "copy")
    async with host.life(host.address(kind)) as (_, streams):
        written = [0, await append(streams[0])]
    assert "an older state of its log, of epoch 0" in await host.refused(host.address(kind, "copy"))
    async with host.life(host.address(kind)) as (_, streams):
        assert await read_all(streams[0]) == written


async def test_a_snapshot_of_a_running_nodes_volume_is_refused_after_an_upload(host: Host) -> None:
    """Its epoch is right, and it ends before what was uploaded since."""
    async with host.life(host.address("block")) as (engine, streams):
        await append(streams[0])
        host.copy("a", "copy")
        await append(streams[0])
        await engine.upload_now()
        written = [0, 3, await append(streams[0])]
    refusal = await host.refused(host.address("block", "copy"))
    assert "an older state of its log, which ends at position" in refusal
    async with host.life(host.address("block")) as (_, streams):
        assert await read_all(streams[0]) == written


async def test_a_copy_with_which_nothing_was_lost_is_the_nodes_log_from_then_on(host: Host) -> None:
    """Its positions are behind those of the volume that it stands for."""
    async with host.life(host.address("block"), clean=True) as (_, streams):
        written = [await append(streams[0])]
    host.copy("a", "copy")
    async with host.life(host.address("block"), clean=True) as (engine, streams):
        written += [await append(streams[0], size=60_000) for _ in range(6)]
        await engine.upload_now()
    for _ in range(2):
        async with host.life(host.address("block", "copy")) as (engine, streams):
            assert await read_all(streams[0], 100_000) == written
            written.append(await append(streams[0]))
            await engine.upload_now()


@pytest.mark.parametrize("then", ["block", "elsewhere", "shared", "memory"])
@pytest.mark.parametrize("kind", ["block", "elsewhere", "shared", "memory"])
async def test_after_a_clean_stop_any_log_will_do(host: Host, kind: str, then: str) -> None:
    async with host.life(host.address(kind), clean=True) as (_, streams):
        written = [await append(streams[0])]
    async with host.life(host.address(then, "b"), clean=True) as (engine, streams):
        assert await read_all(streams[0]) == written
        assert bool(engine.metadata.state.nodes[0].log.log_id) == (then in LASTING)
        assert engine.metadata.state.nodes[0].lost_log is None


@pytest.mark.parametrize("then", ["block", "elsewhere", "memory"])
async def test_what_lies_in_the_clusters_store_is_found_from_any_log(host: Host, then: str) -> None:
    async with host.life(host.address("shared")) as (_, streams):
        written = [await append(streams[0])]
    async with host.life(host.address(then, "b")) as (_, streams):
        assert await read_all(streams[0]) == written


async def test_a_log_is_known_wherever_it_lies(host: Host) -> None:
    """A volume that was moved, given a slice more or made larger is the same one."""
    async with host.life(host.address("block"), slices="&slices=2") as (_, streams):
        written = [await append(streams[0])]
    async with host.life(host.address("block"), node_id=1, opens=False, slices="&slices=2"):
        pass
    (host.folder / "a.wal").rename(host.folder / "moved.wal")
    async with host.life(host.address("block", "moved"), clean=True) as (_, streams):
        written.append(await append(streams[0]))
    larger = host.address("block", "moved").replace("2MiB", "4MiB&grow=yes")
    for _ in range(2):
        async with host.life(larger) as (engine, streams):
            assert await read_all(streams[0]) == written
            written.append(await append(streams[0]))
            await engine.upload_now()


async def closed_by_an_operator(host: Host) -> None:
    metadata = await host.metadata()
    await metadata.commit([FenceNode(node_id=0, epoch=0)])
    await metadata.commit([CloseStream(stream_id=stream_id, epoch=0) for stream_id in (0, 1)])


async def retired(host: Host) -> None:
    await closed_by_an_operator(host)
    await (await host.metadata()).commit([RetireNode(node_id=0)])


async def deleted(host: Host) -> None:
    metadata = await host.metadata()
    await metadata.commit([DeleteTopic(topic_id=metadata.state.topics["t"].topic_id)])


async def recovered(host: Host) -> None:
    async with host.life(host.address("memory"), node_id=1, opens=False):
        metadata = await host.metadata()
        await metadata.commit([FenceNode(node_id=0, epoch=0)])
        taken = CommitObjects(
            node_id=0, node_epoch=0, objects=(), wal_epoch=1, taker_id=1, taker_epoch=0
        )
        await metadata.commit([taken])


@pytest.mark.parametrize("left", [closed_by_an_operator, retired, deleted, recovered])
@pytest.mark.parametrize("kind", LASTING)
async def test_a_node_of_which_nothing_is_left_takes_another_log(
    host: Host, kind: str, left: object
) -> None:
    async with host.life(host.address(kind)) as (_, streams):
        await append(streams[0])
    await left(host)  # type: ignore[operator]
    opens = left is recovered
    async with host.life(host.address(kind, "b"), opens=opens, clean=opens) as (engine, _):
        assert engine.metadata.state.nodes[0].lost_log is None
    # The first one is welcome too: nothing of it counts any more.
    async with host.life(host.address(kind), opens=False):
        pass


@pytest.mark.parametrize("kind", LASTING)
async def test_a_loss_is_accepted_once_and_recorded(host: Host, kind: str) -> None:
    async with host.life(host.address(kind)) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        await append(streams[0])
        lost_id = engine.metadata.state.nodes[0].log.log_id
    await host.refused(host.address(kind, "b"), accept=7)
    async with host.life(host.address(kind, "b"), accept=0) as (engine, streams):
        assert await read_all(streams[0]) == [0]
        lost = engine.metadata.state.nodes[0].lost_log
        assert lost is not None
        assert (lost.log_id, lost.epoch, lost.streams) == (lost_id, 0, 2)
        assert await append(streams[0]) == 3
    # The same word is left in the unit file: it is of no effect any more, neither way.
    async with host.life(host.address(kind, "b"), accept=0) as (engine, streams):
        assert await read_all(streams[0]) == [0, 3]
        assert engine.metadata.state.nodes[0].lost_log == lost
    for name in ("a", "c"):
        await host.refused(host.address(kind, name), accept=0)


@pytest.mark.parametrize("kind", LASTING)
async def test_an_accepted_loss_survives_a_crash_before_the_log_begins(
    host: Host, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.life(host.address(kind)) as (_, streams):
        await append(streams[0])

    class Killed(Exception):
        pass

    def dies(step: str) -> None:
        if step == "node_registered":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(registration, "failpoint", dies)
        with pytest.raises(Killed):
            async with host.life(host.address(kind, "b"), accept=0):
                pass
    accepted_again = -1 if kind == "block" else 1  # an empty store has no id yet that lasts
    async with host.life(host.address(kind, "b"), accept=accepted_again) as (engine, streams):
        assert await read_all(streams[0]) == []
    assert engine.metadata.state.nodes[0].lost_log is not None


@pytest.mark.parametrize("step", ["node_registered", "log_begun"])
@pytest.mark.parametrize("kind", LASTING)
async def test_a_start_that_is_cut_off_leaves_the_log_the_nodes_own(
    host: Host, kind: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    class Killed(Exception):
        pass

    def dies(at: str) -> None:
        if at == step:
            raise Killed

    for _ in range(2):
        async with host.life(host.address(kind)) as (_, streams):
            assert await read_all(streams[0]) == written
            written.append(await append(streams[0]))
        with monkeypatch.context() as patch:
            patch.setattr(registration, "failpoint", dies)
            for _ in range(2):
                with pytest.raises(Killed):
                    async with host.life(host.address(kind)):
                        pass
        await host.refused(host.address(kind, "empty"))


async def test_the_mark_of_an_earlier_start_that_arrives_late_changes_no_id() -> None:
    """It was on its way when its process was killed; the next start has found no mark by then."""
    store = MemoryStore()
    first, second = [
        LogMarks(store, make_owner(store, incarnation=f"{n}", seed=n, scope=TaskScope(crashed)))
        for n in range(2)
    ]
    await first.identity()
    found = await second.identity()
    await first.start(0)
    await second.start(1)
    later = LogMarks(store, make_owner(store, incarnation="2", seed=2, scope=TaskScope(crashed)))
    assert await later.identity() == found._replace(epoch=1)


async def fence(engine: StreamEngine, node_id: int) -> NodeState:
    state = await engine.metadata.refresh()
    node = state.nodes[node_id]
    return (await engine.metadata.commit([FenceNode(node_id=node_id, epoch=node.epoch)])).nodes[
        node_id
    ]


@pytest.mark.parametrize("kind", LASTING)
async def test_a_taker_recovers_no_other_log_than_the_nodes_own(host: Host, kind: str) -> None:
    """Another log lies where the node registered its own: its streams wait until that is back."""
    slices = "&slices=2" if kind == "block" else ""
    for node_id in (0, 1):
        async with host.life(
            host.address(kind, "b"), node_id=node_id, opens=not node_id, slices=slices, clean=True
        ):
            pass
    async with host.life(host.address(kind), slices=slices) as (_, streams):
        written = [await append(streams[0])]
    suffix = "wal" if kind == "block" else "store"
    own, aside = [host.folder / f"{name}.{suffix}" for name in ("a", "aside")]
    own.rename(aside)
    host.copy("b", "a")
    async with host.life(host.address(kind), node_id=1, opens=False, slices=slices) as (taker, _):
        dead = await fence(taker, 0)
        with pytest.raises(WrongLog, match="is another log"):
            await taker.take_over(dead, UnrecoveredWals(taker, host.address(kind)).open)
        assert not taker.metadata.state.nodes[0].is_recovered
    own.rename(host.folder / "wrong")
    aside.rename(own)
    async with host.life(host.address(kind), slices=slices) as (_, streams):
        assert await read_all(streams[0]) == written


async def test_a_node_that_was_taken_over_starts_on_its_own_log_or_another(host: Host) -> None:
    async with host.life(host.address("block"), slices="&slices=2") as (_, streams):
        written = [await append(streams[0])]
    async with host.life(host.address("block"), node_id=1, opens=False, slices="&slices=2") as (
        taker,
        _,
    ):
        dead = await fence(taker, 0)
        assert await taker.take_over(dead, UnrecoveredWals(taker, host.address("block")).open) == 1
    for name in ("b", "a"):
        async with host.life(host.address("block", name), clean=True) as (_, streams):
            assert await read_all(streams[0]) == written


async def test_below_the_feature_level_nothing_is_said_of_logs(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that does not know the record must be able to read on."""
    monkeypatch.setattr(registration, "_LOGS_LEVEL", max(ADDITIONS) + 1)
    async with host.life(host.address("block")) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        assert not engine.metadata.state.nodes[0].log.log_id
        assert engine.metadata.state.nodes[0].log.position == -1


async def gap_log(*offsets: int) -> MemoryWal:
    """A log with records of three offsets each at these offsets, of stream 0 under epoch 0."""
    wal = MemoryWal()
    listener = await started(wal, 0)
    end = 0
    for base in offsets:
        end = wal.append(0, 0, base, 3, b"x" * 70)
    await listener.wait_released(end)
    return wal.reopen()


@pytest.mark.parametrize("newer_epochs", [False, True])
async def test_a_gap_in_the_current_epoch_is_an_error_of_recovery(newer_epochs: bool) -> None:
    host_state = await one_stream()

    async def recover(state: MetadataImage, *offsets: int) -> int:
        count = 0
        wal = await gap_log(*offsets)
        choice = Uncommitted(state, 0, newer_epochs=newer_epochs)
        async for block, _ in chosen_blocks(wal, choice, 1 << 20):
            count += sum(map(len, block.batches.values()))
        return count

    assert await recover(host_state, 0, 3, 6) == 3
    for offsets in ((3,), (0, 6), (0, 3, 9)):
        with pytest.raises(WalCorrupted, match=r"stream 0, epoch 0, at offset \d"):
            await recover(host_state, *offsets)
    with pytest.raises(WalCorrupted):  # half of it is committed: no upload cuts a batch
        await recover(host_state, 0, 2)
    gone = apply_records(host_state, [DeleteTopic(topic_id=host_state.topics["t"].topic_id)], 0)
    assert await recover(gone, 3, 9) == 0
    closed = apply_records(host_state, [CloseStream(stream_id=0, epoch=0)], 0)
    assert await recover(closed, 3, 9) == 0


async def one_stream() -> MetadataImage:
    """A stream that is open on node 0 under epoch 0, with nothing committed."""
    scope = TaskScope(lambda name, error: None)

    async def opener(_: WalOwner) -> WriteAheadLog:
        return MemoryWal()

    engine = await StreamEngine.open(
        store=MemoryStore(),
        open_wal=opener,
        node=NodeIdentity(node_id=0, host="h", port=1),
        clock=SystemClock(),
        rng=random.Random(0),
        settings=LAZY,
        scope=scope,
    )
    await engine.metadata.commit_with(create_topic(1))
    await engine.open_streams([0])
    await scope.close()
    return engine.metadata.state
