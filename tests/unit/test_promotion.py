"""A prefix that replication has filled becomes the cluster in place: the newest whole state of it,
once, whatever arrives later and wherever the command is killed.
"""

import asyncio
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

import lakehead
from lakehead.broker.cli import restore
from lakehead.storage.backup.followed_copy import PrefixCopy, follow_copy
from lakehead.storage.backup.manifest import named_objects
from lakehead.storage.backup.promotion import promote_copy
from lakehead.storage.backup.signs_of_life import WatchedPrefix
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CopyPromoted,
    EntryRejected,
    LakeheadError,
    NotFound,
    RequestRefused,
)
from lakehead.storage.failpoints import KILLED
from lakehead.storage.format.batch_writer import KeyValue
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.run_record import Run, RunKey
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions, find_leaks
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.metadata.entry import decode_entry, entry_key
from lakehead.storage.metadata.layout import Listing
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.log_reader import read_checkpoint
from lakehead.storage.metadata.records import (
    AssignStreams,
    CreateStream,
    CreateTopic,
    Record,
    TakeTable,
)
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore
from lakehead.storage.object_store.protocol import Buffer, ObjectStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from tests.support.backups import back_up, promote, promoted
from tests.support.command_line import CommandLine
from tests.support.template_process import lakehead_command
from tests.unit.test_followed_copy import arrive, changes, files
from tests.unit.test_wal_tail import LAZY, append, broker

STEPS = ("sealed", "corrected", "state_put", "decided", "published", "closed")
Offsets = Mapping[int, Sequence[int]]


async def grow(folder: Path, seed: int, *, turns: int = 6) -> None:
    """Append to two partitions, upload now and then, write checkpoints; at the end the node is
    killed.
    """
    rng = random.Random(seed)
    async with broker(folder, LAZY, seed=seed) as (engine, streams):
        for _ in range(turns):
            await append(rng.choice(streams), rng.randint(1, 20))
            if rng.random() < 0.4:
                await engine.upload_now()
            if rng.random() < 0.3:
                await engine.metadata.maintain(2)


def offsets(folder: Path, *, tail: bool = False) -> Offsets:
    """Return the offsets that are there of each partition; each record has its own as its value."""
    found: dict[int, list[int]] = {0: [], 1: []}
    scan = lakehead.scan(str(folder), "t", tail="wal" if tail else "objects")
    for row in scan.read_all().to_pylist():
        assert row["value"] == b"%d" % row["offset"]
        found[row["partition"]].append(row["offset"])
    return found


def in_log(folder: Path) -> MetadataImage:
    async def read() -> MetadataImage:
        log = await MetadataLog.open(
            FileStore(folder), writer_id="t", clock=SystemClock(), rng=random.Random(1)
        )
        return log.state

    return asyncio.run(read())


async def newest_whole(folder: Path) -> MetadataImage | None:
    """Return the newest state of a copy at which nothing is missing, by trying each entry after
    each checkpoint.
    """
    store, there, best = FileStore(folder), files(folder), None
    for number in (0, *Listing.of(await store.list("meta/")).checkpoints):
        state = await read_checkpoint(store, number) if number else MetadataImage()
        while True:
            is_newer = best is None or state.next_entry > best.next_entry
            if is_newer and state.cluster_id and there.issuperset(named_objects(state)):
                best = state
            key = entry_key(state.next_entry)
            if key not in there:
                break
            entry = decode_entry(key, (folder / key).read_bytes())
            with suppress(EntryRejected):
                state = apply_records(state, entry.records, entry.time_ms)
            state = state.refuse(entry)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_what_has_arrived_becomes_the_newest_state_that_is_whole(tmp_path: Path, seed: int) -> None:
    """Objects arrive one by one and in any order, some of them late, and the last never do."""
    rng = random.Random(seed)
    source, copy = tmp_path / "source", tmp_path / "copy"
    for stage in range(3):
        asyncio.run(grow(source, seed * 10 + stage))
        for _ in changes(source, copy, rng):
            if rng.random() < 0.02 * (stage + 1):
                break  # the others are late, or lost
    full = offsets(source, tail=True)
    expected = asyncio.run(newest_whole(copy))
    if expected is None or "t" not in expected.topics:
        with suppress(NotFound):
            promote(copy)
        return
    done = promote(copy)
    assert done.point is not None
    assert done.point.state.next_entry == expected.next_entry
    state = in_log(copy)
    assert state.next_entry == done.promotion.number
    assert state.cluster_id == expected.cluster_id
    assert all(node.is_recovered for node in state.nodes.values())
    found = offsets(copy)
    for stream in expected.streams.values():
        here = found[stream.partition]
        assert here == full[stream.partition][: len(here)], "without a gap, and nothing else"
        assert len(here) >= stream.end_offset
    assert run_job(VERIFY, str(copy)).damages == ()
    asyncio.run(grow(copy, seed + 500))
    after = offsets(copy, tail=True)
    assert all(after[index][: len(some)] == some for index, some in found.items())
    assert sum(map(len, after.values())) > sum(map(len, found.values()))
    run_job(SWEEP, str(copy), SweepOptions(grace_s=0, margin_s=0))
    leaks = find_leaks(str(copy))
    assert not leaks.missing
    assert not leaks.strange
    assert offsets(copy, tail=True) == after


def without_runs(folder: Path) -> set[str]:
    """Return the files but for records of runs."""
    return {name for name in files(folder) if not name.startswith("runs/")}


def make_old(folder: Path, age_s: float = 120.0) -> None:
    """Have all objects be written this long ago, as in a region that was lost a while ago."""
    at = SystemClock().now_ms() / 1000 - age_s
    for name in files(folder):
        os.utime(folder / name, (at, at))


def cut_off(tmp_path: Path, seed: int) -> tuple[Path, Path, set[str]]:
    """Return a cluster, a copy of it, and the newest objects, which have not arrived there."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    asyncio.run(grow(source, seed, turns=8))
    shutil.copytree(source, copy)
    asyncio.run(grow(source, seed + 1, turns=8))
    late = files(source) - files(copy)
    for name in sorted(late)[::2]:
        arrive(source, copy, name)
    return source, copy, files(source) - files(copy)


@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_it_goes_on_to_one_cluster(tmp_path: Path, step: str) -> None:
    source, copy, late = cut_off(tmp_path, 7)
    command = ("restore", str(copy), "--in-place", "--replicated", "--force", "--yes", "--json")
    killed = lakehead_command(*command, failpoint=f"promotion_{step}")
    assert killed.returncode == KILLED, killed.stderr
    for name in sorted(late):
        arrive(source, copy, name)
    is_decided = step in STEPS[3:]
    expected = asyncio.run(newest_whole(copy))
    done = lakehead_command(*command)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert ("last_entry_at" in shown) == (not is_decided), shown
    state, found = in_log(copy), offsets(copy)
    if not is_decided:
        assert expected is not None
        assert state.next_entry >= expected.next_entry + 1_000_000
    assert run_job(VERIFY, str(copy)).damages == ()
    asyncio.run(grow(copy, 99))
    after, further = offsets(copy, tail=True), in_log(copy)
    assert all(after[index][: len(some)] == some for index, some in found.items())
    again = lakehead_command(*command)
    assert again.returncode == 0, again.stderr
    assert in_log(copy) == further, "a cluster that runs is not promoted once more"
    assert offsets(copy, tail=True) == after


def test_what_replication_delivers_after_a_promotion_changes_nothing(tmp_path: Path) -> None:
    source, copy, late = cut_off(tmp_path, 3)
    promote(copy)
    before, found = in_log(copy), offsets(copy)
    for name in sorted(late):
        arrive(source, copy, name)
    assert in_log(copy) == before
    assert offsets(copy) == found
    asyncio.run(grow(copy, 99))
    after = offsets(copy, tail=True)
    assert all(after[index][: len(some)] == some for index, some in found.items())


def test_two_promotions_at_once_make_one_cluster(tmp_path: Path) -> None:
    _, copy, _ = cut_off(tmp_path, 5)

    async def both() -> list[int]:
        done = await asyncio.gather(
            *(promoted(FileStore(copy), seed=number) for number in range(3))
        )
        assert len({one.promotion for one in done}) == 1
        assert sum(one.point is not None for one in done) == 1, "only one has decided"
        return [one.promotion.number for one in done]

    numbers = asyncio.run(both())
    assert in_log(copy).next_entry == numbers[0]
    assert run_job(VERIFY, str(copy)).damages == ()


async def test_a_node_that_writes_to_the_copy_is_fenced(tmp_path: Path) -> None:
    await grow(tmp_path, 1)
    async with broker(tmp_path, LAZY, seed=8) as (engine, streams):
        kept = [await append(stream, 5) for stream in streams]
        await promoted(FileStore(tmp_path))
        with pytest.raises(LakeheadError):
            async with asyncio.timeout(20):
                await append(streams[0], 5)
                raise AssertionError("it was acknowledged, and is lost")
        with pytest.raises(LakeheadError):
            await engine.upload_now()
    found = await asyncio.to_thread(offsets, tmp_path)
    assert [len(found[index]) for index in range(2)] == kept


async def test_a_node_that_starts_while_logs_are_sealed_is_fenced(tmp_path: Path) -> None:
    await grow(tmp_path, 1)
    async with AsyncExitStack() as stack:
        started: list[tuple[StreamEngine, list[Stream]]] = []

        class Meanwhile(FileStore):
            async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
                await super().create(key, pieces)
                if key.startswith("wal/") and not started:
                    node = broker(tmp_path, LAZY, seed=8)
                    started.append(await stack.enter_async_context(node))

        await promoted(Meanwhile(tmp_path))
        ((_, streams),) = started
        with pytest.raises(LakeheadError):
            async with asyncio.timeout(20):
                await append(streams[0], 5)
                raise AssertionError("it was acknowledged, and is lost")


def made_by(node_id: int, name: str) -> Callable[[MetadataImage], list[Record]]:
    """Return a plan that makes a topic of one partition, which a node is to lead."""

    def plan(state: MetadataImage) -> list[Record]:
        stream_id, topic_id = state.next_stream_id, "b" * 32
        return [
            CreateTopic(name=name, topic_id=topic_id),
            CreateStream(stream_id=stream_id, topic_id=topic_id, partition=0),
            AssignStreams(node_id=node_id, stream_ids=(stream_id,)),
        ]

    return plan


@pytest.mark.parametrize("log_has_arrived", [True, False])
async def test_a_node_that_was_new_when_the_copy_was_cut_off_uses_no_name_again(
    tmp_path: Path, log_has_arrived: bool
) -> None:
    """Its objects have arrived, and the entry that registered it has not."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    await grow(source, 1)
    shutil.copytree(source, copy)
    async with broker(source, LAZY, node_id=7, seed=2) as (engine, _):
        state = await engine.metadata.commit_with(made_by(7, "lost"))
        (stream,) = await engine.open_streams(state.topics["lost"].partitions)
        await append(stream, 10)
        logs = {name for name in files(source) if name.startswith("wal/7/")}
        for name in logs if log_has_arrived else ():  # now: an upload trims them
            arrive(source, copy, name)
        await engine.upload_now()
    late = {name for name in files(source) - files(copy) if not name.startswith("wal/7/")}
    for name in late - {min(name for name in late if name.startswith("meta/log/"))}:
        arrive(source, copy, name)
    assert any("/7-0-0" in name for name in files(copy))
    done = await promoted(FileStore(copy))
    assert done.point is not None
    assert 7 not in done.point.state.nodes
    async with broker(copy, LAZY, node_id=7, seed=3) as (engine, _):
        state = await engine.metadata.commit_with(made_by(7, "new"))
        (stream,) = await engine.open_streams(state.topics["new"].partitions)
        await append(stream, 3)
        (written,) = await stream.fetch(0, 1 << 20)
        await engine.upload_now()
        engine.cache.forget(stream.stream_id)
        assert await stream.fetch(0, 1 << 20) == [written]


async def test_an_entry_of_a_node_in_the_copy_finds_the_promoted_metadata(tmp_path: Path) -> None:
    await grow(tmp_path, 1)
    log = await MetadataLog.open(
        FileStore(tmp_path), writer_id="other", clock=SystemClock(), rng=random.Random(1)
    )
    await log.maintain(1)
    done = await promoted(FileStore(tmp_path))
    state = await log.commit_with(lambda _state: [])
    state = await log.create_cluster("c" * 32)
    await log.refresh(surely=True)
    assert log.state.next_entry >= done.promotion.number > state.next_entry - 2
    assert len(Listing.of(await FileStore(tmp_path).list("meta/boundary/")).boundaries) == 1


def test_a_standby_becomes_a_node_only_where_the_copy_was_promoted(tmp_path: Path) -> None:
    """The promoted prefix is replicated once more, and that copy is followed on."""
    _, copy, _ = cut_off(tmp_path, 4)
    follower = PrefixCopy(FileStore(copy))
    asyncio.run(follower.look())
    promote(copy)
    with pytest.raises(CopyPromoted, match="was made a cluster"):
        asyncio.run(follower.look())
    with pytest.raises(CopyPromoted):
        asyncio.run(asyncio.run(follow_copy(FileStore(copy))).look())
    asyncio.run(grow(copy, 99))
    again = tmp_path / "again"
    shutil.copytree(copy, again)
    other = asyncio.run(follow_copy(FileStore(again)))
    assert asyncio.run(other.look()).state.next_entry == in_log(copy).next_entry
    promote(again)
    with pytest.raises(CopyPromoted):
        asyncio.run(other.look())


@pytest.mark.parametrize("change", ["deleted", "arrived"])
def test_a_copy_that_still_changes_is_not_promoted(tmp_path: Path, change: str) -> None:
    source, copy, late = cut_off(tmp_path, 6)

    async def meanwhile(
        _store: ObjectStore, state: MetadataImage
    ) -> Mapping[int, Sequence[KeyValue]]:
        if change == "deleted":
            (copy / min(named_objects(state))).unlink()
        else:
            for name in late:
                arrive(source, copy, name)
        return {}

    async def work() -> None:
        await promote_copy(
            FileStore(copy), correct=meanwhile, clock=SystemClock(), rng=random.Random(1)
        )

    with pytest.raises(RequestRefused, match="stop its replication"):
        asyncio.run(work())
    done = promote(copy)
    assert done.point is not None
    assert run_job(VERIFY, str(copy)).damages == ()


@pytest.mark.parametrize("ahead", [50, 3_000_000])
def test_a_boundary_that_came_before_its_checkpoint_does_not_hide_an_earlier_state(
    tmp_path: Path, ahead: int
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    asyncio.run(grow(source, 1))
    shutil.copytree(source, copy)
    whole = asyncio.run(newest_whole(copy))
    assert whole is not None
    boundary = copy / "meta" / "boundary" / f"{whole.next_entry + ahead:020d}-{'a' * 16}"
    boundary.parent.mkdir(exist_ok=True)
    boundary.write_bytes(b"")
    done = promote(copy)
    assert done.point is not None
    assert done.point.state.next_entry == whole.next_entry
    assert in_log(copy).next_entry == done.promotion.number > whole.next_entry + ahead
    assert offsets(copy) == offsets(source, tail=True)


def test_a_place_of_backups_and_a_cluster_are_not_taken_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    source, backup = tmp_path / "source", tmp_path / "backup"
    asyncio.run(grow(source, 1))
    before = files(source)
    refused = command_line.fails("restore", str(source), "--in-place")
    assert "--replicated" in refused
    assert files(source) == before
    back_up(source, backup)
    refused = command_line.fails("restore", str(backup), "--in-place", "--replicated", "--yes")
    assert "holds backups" in refused
    refused = command_line.fails("restore", str(source), str(tmp_path / "new"), "--replicated")
    assert "--replicated is for --in-place" in refused


def test_a_promotion_without_a_confirmation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy may be the cluster that runs, if an operator names the wrong place."""
    monkeypatch.setattr(restore, "WATCH_S", 0.0)
    asyncio.run(grow(tmp_path, 1))
    make_old(tmp_path)
    before = files(tmp_path)
    command_line = CommandLine(monkeypatch, capsys)
    refused = command_line.fails("restore", str(tmp_path), "--in-place", "--replicated")
    assert "fence all nodes that write there" in refused
    assert "--yes" in refused
    assert files(tmp_path) == before


def test_what_a_promotion_leaves_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    source, copy = tmp_path / "source", tmp_path / "copy"
    asyncio.run(grow(source, 1))
    shutil.copytree(source, copy)
    asyncio.run(grow(source, 2))
    late = files(source) - files(copy)
    for name in late:
        if name.startswith("meta/log/"):
            arrive(source, copy, name)
    shown = json.loads(command_line("restore", str(copy), "--dry-run", "--json").out)
    assert shown["entries_left_out"] > 0
    assert shown["left_out_until"] > shown["last_entry_at"]
    assert shown["objects_missing"] > 0
    assert "meta/promotion" not in "".join(files(copy))
    promoting = ["restore", str(copy), "--in-place", "--replicated", "--yes", "--json"]
    done = json.loads(command_line(*promoting, "--force").out)
    assert done["entries_left_out"] == shown["entries_left_out"]
    assert done["restored_in"] == f"file:{copy}"


def test_a_prefix_that_looks_alive_is_promoted_by_force_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place may be that of a cluster that runs: its objects are fresh, and nothing is sealed,
    fenced or decided there. Once it is promoted, the command is repeated without a look.
    """
    monkeypatch.setattr(restore, "WATCH_S", 0.0)
    command_line = CommandLine(monkeypatch, capsys)
    asyncio.run(grow(tmp_path, 1))
    before = files(tmp_path)
    promoting = ["restore", str(tmp_path), "--in-place", "--replicated", "--yes"]
    refused = command_line.fails(*promoting)
    assert "was written 0 s ago" in refused
    assert "--force" in refused
    assert files(tmp_path) == before
    assert command_line(*promoting, "--force").status == 0
    promoted_files = without_runs(tmp_path)
    assert command_line(*promoting).status == 0
    assert without_runs(tmp_path) == promoted_files
    refused = command_line.fails("restore", str(tmp_path), str(tmp_path / "new"), "--force")
    assert "--force is for" in refused


async def test_signs_of_life_are_what_is_fresh_and_what_moves(tmp_path: Path) -> None:
    await grow(tmp_path, 3)
    clock, store = SystemClock(), FileStore(tmp_path)
    log = await MetadataLog.open(store, writer_id="t", clock=clock, rng=random.Random(1))
    make_old(tmp_path)
    assert await WatchedPrefix(store, clock).first_sign(log.state) == ""
    prefix = WatchedPrefix(store, clock)
    assert await prefix.first_sign(log.state) == ""
    assert await prefix.change() == ""
    oldest = min(name for name in files(tmp_path) if name.startswith("meta/log/"))
    (tmp_path / oldest).unlink()
    assert await prefix.change() == f"{oldest} was deleted while it was watched"
    topic = log.state.topics["t"].topic_id
    lease = TakeTable(topic_id=topic, holder="host/7", term=0, until_ms=clock.now_ms() + 30_000)
    state = await log.commit([lease])
    assert "was written while it was watched" in await prefix.change()
    make_old(tmp_path)
    found = await WatchedPrefix(store, clock).first_sign(state)
    assert found.startswith("host/7 has the lease of the table of t until ")
    over = replace(state, tables=Map())
    for job, sign in (("restore", ""), ("backup", "the job backup runs on it (host/8, ")):
        run = Run(job=job, holder="host/8", started_ms=1, updated_ms=clock.now_ms())
        await store.create(RunKey(f"{len(job):013d}-{'a' * 16}", 0).key, [run.body()])
        found = await WatchedPrefix(store, clock).first_sign(over)
        assert found.startswith(sign)
        assert bool(found) == bool(sign)
