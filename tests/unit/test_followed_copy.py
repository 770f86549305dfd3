"""A copy of a cluster that is followed: what has not arrived never counts, and what was served once
stays.
"""

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from lakehead.storage.backup.followed_copy import (
    BackupCopy,
    CopyPoint,
    FollowedCopy,
    PrefixCopy,
    ends_earlier,
    follow_copy,
)
from lakehead.storage.backup.led_streams import LedStreams, led, stream_heads
from lakehead.storage.backup.manifest import named_objects
from lakehead.storage.backup.pruning import Kept
from lakehead.storage.backup.standby_log import StandbyLog
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import CopyPromoted, NotFound, ReadOnlyCluster
from lakehead.storage.metadata.records import DeleteTopic
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import FileStore
from lakehead.storage.object_store.read_only import ReadOnlyStore
from tests.integration.test_compaction_crashes import in_log
from tests.support.backups import back_up, bring_back
from tests.unit.test_backup import inherit, opened_log, replace_objects, write
from tests.unit.test_wal_tail import LAZY, append, broker

NODE = NodeState(
    node_id=7, epoch=0, incarnation="i", host="standby", port=1, rack=None, host_id="h"
)


def files(folder: Path) -> set[str]:
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


def arrive(source: Path, copy: Path, name: str) -> None:
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / name, copy / name)


def changes(source: Path, copy: Path, rng: random.Random) -> Iterator[None]:
    """Replicate, one object at a time and in any order, what is new and what is deleted."""
    here, there = files(source), files(copy)
    steps = sorted(here ^ there)
    rng.shuffle(steps)
    for name in steps:
        if name in here:
            arrive(source, copy, name)
        else:
            (copy / name).unlink()
        yield


def look(copy: FollowedCopy) -> CopyPoint:
    return asyncio.run(copy.look())


def check_led(streams: LedStreams, state: MetadataImage) -> None:
    """One state after the other gives the same as this state alone, and as each of its values."""
    found = streams.of(state)
    assert found == LedStreams(7).of(state)
    assert dict(found.items()) == {key: led(one, 7) for key, one in state.streams.items()}
    heads = {key: (max(epoch, 0), end) for key, (epoch, end) in stream_heads(found).items()}
    assert heads == {key: (one.epoch, one.end_offset) for key, one in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_objects_that_arrive_in_any_order_never_count_too_early(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    source, target = tmp_path / "store", tmp_path / "copy"
    copy, streams = PrefixCopy(FileStore(target)), LedStreams(7)
    last: CopyPoint | None = None
    for stage in range(4):
        write(tmp_path, seed=seed + stage, uploads=2)
        if stage == 2:
            replace_objects(source)
        for _ in changes(source, target, rng):
            with suppress(NotFound):  # not even the cluster's id has arrived
                point = look(copy)
                there = files(target)
                absent = [key for key in named_objects(point.state) if key not in there]
                assert not files(source).intersection(absent), "it has not arrived, and counts"
                assert last is None or not ends_earlier(point.state, last.state)
                assert last is None or point.state.next_entry >= last.state.next_entry
                check_led(streams, point.state)
                last = point
        point = look(copy)
        assert point.entries_behind == 0
        assert point.state.next_entry == in_log(tmp_path).next_entry
        assert point.state.streams == in_log(tmp_path).streams


def test_one_object_that_has_not_arrived_holds_everything_after_it_back(tmp_path: Path) -> None:
    source, target = tmp_path / "store", tmp_path / "copy"
    write(tmp_path, uploads=1)
    shutil.copytree(source, target)
    copy = PrefixCopy(FileStore(target))
    before = look(copy)
    write(tmp_path, seed=1, uploads=1)
    (late,) = [one for one in files(source) - files(target) if one.startswith("data/")]
    write(tmp_path, seed=2, uploads=2)
    for name in files(source) - files(target) - {late}:
        arrive(source, target, name)
    held = look(copy)
    assert {one.end_offset for one in held.state.streams.values()} == {
        one.end_offset for one in before.state.streams.values()
    }
    assert held.entries_behind > 0
    assert look(copy).state is held.state, "nothing is new"
    arrive(source, target, late)
    after = look(copy)
    assert after.entries_behind == 0
    assert after.state.streams == in_log(tmp_path).streams


def test_a_log_whose_next_entries_are_deleted_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    """The boundary may arrive before the checkpoint, and the checkpoint before the objects."""
    source, target, later = tmp_path / "store", tmp_path / "copy", tmp_path / "later"
    write(tmp_path, uploads=1)
    shutil.copytree(source, target)
    copy = PrefixCopy(FileStore(target))
    before = look(copy)
    write(tmp_path, seed=1, uploads=1)
    back_up(source, tmp_path / "backup")
    bring_back(tmp_path / "backup", later)  # its log begins with a checkpoint, much later
    for name in files(target):
        if name.startswith("meta/"):
            (target / name).unlink()
    for prefix in ("meta/boundary/", "meta/", "data/"):
        assert look(copy).state is before.state
        for name in files(later) - files(target):
            if name.startswith(prefix):
                arrive(later, target, name)
    assert look(copy).state.next_entry > 1_000_000
    assert look(copy).entries_behind == 0


def test_backups_of_a_cluster_with_checkpoints_are_led_as_their_rows(tmp_path: Path) -> None:
    """The state of each backup is rows of its own, and changes of write-ahead logs."""
    source, target = tmp_path / "store", tmp_path / "backup"
    streams = LedStreams(7)

    async def work(seed: int) -> None:
        async with broker(source, LAZY, seed=seed) as (engine, opened):
            await append(opened[seed % 2])
            await engine.upload_now()
            await append(opened[0])

    for seed in range(3):
        asyncio.run(work(seed))
        back_up(source, target, kept=Kept(hours=0))
        state = look(asyncio.run(follow_copy(FileStore(target)))).state
        assert state.streams.rows is not None
        check_led(streams, state)


def test_backups_are_followed_while_older_ones_are_pruned(tmp_path: Path) -> None:
    source, target = tmp_path / "store", tmp_path / "backup"
    write(tmp_path)
    back_up(source, target, kept=Kept(hours=0))
    copy = asyncio.run(follow_copy(FileStore(target)))
    assert isinstance(copy, BackupCopy)
    first = look(copy)
    back_up(source, target, kept=Kept(hours=0))
    same = look(copy)
    assert same.state is first.state or same.state == first.state
    assert same.position_ms >= first.position_ms
    for number in range(3):
        write(tmp_path, seed=number + 1)
        back_up(source, target, kept=Kept(hours=0))
    newest = look(copy)
    assert newest.state.streams == in_log(tmp_path).streams
    assert newest.entries_behind == 0


def test_a_backup_without_all_of_its_objects_is_not_served(tmp_path: Path) -> None:
    """A backup that is replicated once more arrives in any order, too."""
    source, target, again = tmp_path / "store", tmp_path / "backup", tmp_path / "again"
    write(tmp_path, uploads=1)
    back_up(source, target)
    shutil.copytree(target, again)
    copy = asyncio.run(follow_copy(FileStore(again)))
    before = look(copy)
    write(tmp_path, seed=1, uploads=1)
    back_up(source, target)
    new = files(target) - files(again)
    (late,) = [one for one in new if one.startswith("data/")]
    for name in new - {late}:
        arrive(target, again, name)
    assert look(copy).state is before.state
    arrive(target, again, late)
    assert look(copy).state.streams == in_log(tmp_path).streams


@pytest.mark.parametrize("part", ["manifest", "state"])
def test_a_damaged_backup_is_passed_over_until_the_next_one(tmp_path: Path, part: str) -> None:
    """An error would end the standby, and with it what it serves."""
    source, target = tmp_path / "store", tmp_path / "backup"
    write(tmp_path)
    back_up(source, target)
    copy = asyncio.run(follow_copy(FileStore(target)))
    first = look(copy)
    write(tmp_path, seed=1)
    back_up(source, target)
    damaged = max((target / "backup" / part).iterdir())
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-5] + b"xxxxx")
    assert look(copy) == first
    assert look(asyncio.run(follow_copy(FileStore(target)))).state == first.state
    write(tmp_path, seed=2)
    back_up(source, target)
    assert look(copy).state.next_entry > first.state.next_entry


def test_a_copy_that_was_promoted_is_followed_no_more(tmp_path: Path) -> None:
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    copy = asyncio.run(follow_copy(FileStore(tmp_path / "backup")))
    look(copy)
    bring_back(tmp_path / "backup")
    with pytest.raises(CopyPromoted, match="was made a cluster"):
        look(copy)
    with pytest.raises(CopyPromoted):
        look(asyncio.run(follow_copy(FileStore(tmp_path / "backup"))))


@pytest.mark.parametrize("kind", ["backup", "prefix"])
async def test_a_partition_ends_before_records_in_the_log_of_a_dead_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It goes on once they are uploaded. Other partitions do not wait for that."""
    monkeypatch.setattr("lakehead.storage.backup.run._TAIL_LOOKS", 1)
    source, log = await opened_log(tmp_path)
    folder = tmp_path / ("backup" if kind == "backup" else "store")

    async def copied() -> None:
        if kind == "backup":
            await asyncio.to_thread(back_up, tmp_path / "store", folder)

    await copied()
    copy = await follow_copy(FileStore(folder))
    standby = await StandbyLog.open_copy(
        FileStore(folder), copy, NODE, clock=SystemClock(), rng=random.Random(1)
    )
    stream_id = log.state.next_stream_id
    commit_tail = await inherit(log, source)
    await asyncio.to_thread(write, tmp_path, seed=1)
    await copied()
    state = await standby.refresh()
    waiting = state.stream(stream_id)
    assert (waiting.end_offset, len(waiting.extents)) == (0, 0)
    log_state = await asyncio.to_thread(in_log, tmp_path)
    (topic,) = [one for one in log_state.topics.values() if one.name == "t"]
    for one in topic.partitions:
        assert state.stream(one).end_offset == log_state.stream(one).end_offset > 0
    await source.create(commit_tail.objects[0].key, [bytes(100)])
    await log.refresh()
    taker = log.state.nodes[commit_tail.taker_id]
    await log.commit([msgspec.structs.replace(commit_tail, taker_epoch=taker.epoch)])
    await copied()
    assert (await standby.refresh()).stream(stream_id).end_offset == 5


def test_a_standby_is_the_one_node_and_commits_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    store = FileStore(tmp_path / "store")

    async def work() -> None:
        copy = await follow_copy(store)
        log = await StandbyLog.open_copy(
            ReadOnlyStore(store), copy, NODE, clock=SystemClock(), rng=random.Random(1)
        )
        seen: list[int] = []
        log.subscribe(lambda state: seen.append(state.next_entry))
        state = log.state
        assert set(state.nodes) == {7} == {one.node_id for one in state.streams.values()}
        assert all(one.is_open for one in state.streams.values())
        assert state.controller.node_id == 7
        topic_id = state.topics["t"].topic_id
        with pytest.raises(ReadOnlyCluster, match="standby"):
            await log.commit([DeleteTopic(topic_id=topic_id)])
        with pytest.raises(ReadOnlyCluster):
            await log.store.create("data/x", [b""])
        with pytest.raises(ReadOnlyCluster):
            await log.store.delete(["data/x"])
        await log.refresh()
        assert seen == [], "nothing is new"
        await asyncio.to_thread(write, tmp_path, seed=1)
        await log.refresh()
        assert len(seen) == 1
        assert log.lag.newest_record_ms is not None

    before = files(tmp_path / "store")
    asyncio.run(work())
    assert files(tmp_path / "store") >= before
