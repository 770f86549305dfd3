"""Backups of a cluster in another store: complete whenever they are cut off, restored with every
record at its offset.
"""

import asyncio
import functools
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

import lakehead
from lakehead.storage.backup.manifest import Manifest, read_state
from lakehead.storage.backup.pruning import Kept, kept_numbers
from lakehead.storage.backup.restore import find_point
from lakehead.storage.backup.run import Backups
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    NotFound,
    RequestRefused,
    SettingsError,
    StoreUnavailable,
)
from lakehead.storage.failpoints import KILLED
from lakehead.storage.format.object_names import JobName
from lakehead.storage.jobs.backup import JOB as BACKUP
from lakehead.storage.jobs.backup import BackupOptions
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.job import plan_job, run_job
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions, find_leaks
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import AclBinding, AclCreate, ScramUpsert, TopicConfig
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import Buffer, FileStore
from lakehead.storage.stream.wal_tails import WalListing
from tests.integration.test_compaction_crashes import in_log
from tests.support.backups import back_up, bring_back
from tests.support.command_line import CommandLine
from tests.support.record_batches import TestRecord
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until
from tests.unit.test_wal_tail import LAZY, append, broker

KILLS = [
    *(("backup", name) for name in ("backup_object_put", "backup_objects_copied")),
    *(("backup", name) for name in ("backup_state_put", "backup_manifest_put")),
    *(("restore", name) for name in ("backup_object_put", "restore_objects_copied")),
    *(("restore", name) for name in ("restore_corrected", "restore_published")),
]
Row = dict[str, object]


def write(folder: Path, *, seed: int = 0, uploads: int = 3) -> None:
    rng = random.Random(seed)
    for number in range(uploads):
        values = {
            partition: [
                TestRecord(offset=0, key=b"k%d" % rng.randrange(9), value=b"%d %d" % (number, n))
                for n in range(rng.randint(1, 30))
            ]
            for partition in range(3)
        }
        write_topic(folder / "store", "t", values, partitions=3, batch_records=3)


def rows(folder: Path) -> list[Row]:
    return list(lakehead.scan(str(folder), "t").read_all().to_pylist())


def is_sound(folder: Path) -> bool:
    return run_job(VERIFY, str(folder)).damages == ()


def replace_objects(folder: Path) -> None:
    """Merge small objects, and delete them at once."""
    assert run_job(COMPACT, str(folder), CompactObjectsOptions(count_min=2)).items
    run_job(SWEEP, str(folder), SweepOptions(grace_s=0, margin_s=0))


def test_a_restored_cluster_has_each_record_at_its_offset_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path)
    source = tmp_path / "store"
    topic_id = in_log(tmp_path).topics["t"].topic_id
    rule = AclBinding(
        resource_type="topic",
        resource_name="t",
        pattern_type="literal",
        principal="User:anna",
        host="*",
        operation="read",
        permission="allow",
    )
    in_log(
        tmp_path,
        TopicConfig(topic_id=topic_id, configs={"retention.ms": "-1"}),
        AclCreate(acls=(rule,)),
        ScramUpsert(
            user="anna",
            mechanism="SCRAM-SHA-256",
            salt=b"1",
            stored_key=b"2",
            server_key=b"3",
            iterations=4096,
        ),
    )
    before, old = rows(source), in_log(tmp_path)
    done = back_up(source, tmp_path / "backup")
    assert done.manifest.objects == done.copied_objects > 0
    shutil.rmtree(source)
    restored = bring_back(tmp_path / "backup", tmp_path / "new" / "store")
    new = in_log(tmp_path / "new")
    assert new == restored.state
    assert new.cluster_id == old.cluster_id
    assert new.topics == old.topics
    assert new.acls == old.acls
    assert new.scram_credentials == old.scram_credentials
    assert rows(tmp_path / "new" / "store") == before
    assert is_sound(tmp_path / "new" / "store")
    write(tmp_path / "new", seed=1)
    found = rows(tmp_path / "new" / "store")
    assert [row for row in found if row in before] == before
    assert len(found) > len(before)
    assert is_sound(tmp_path / "new" / "store")
    run_job(SWEEP, str(tmp_path / "new" / "store"), SweepOptions(grace_s=0, margin_s=0))
    leaks = find_leaks(str(tmp_path / "new" / "store"))
    assert not leaks.missing
    assert not leaks.strange


def test_nothing_that_the_lost_cluster_still_does_fits_the_restored_one(tmp_path: Path) -> None:
    write(tmp_path)
    old = in_log(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    state = bring_back(tmp_path / "backup", tmp_path / "new").state
    for node_id, node in state.nodes.items():
        assert node.is_recovered
        assert node.epoch > old.nodes[node_id].epoch + 1000
    for stream_id, stream in state.streams.items():
        assert not stream.is_open
        assert stream.epoch > old.streams[stream_id].epoch + 100
    assert state.node_secret != old.node_secret
    assert state.next_producer_id > old.next_producer_id + 1_000_000


def test_a_second_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    again = back_up(tmp_path / "store", tmp_path / "backup")
    assert again.copied_objects == 0
    assert again.manifest.number == 1
    write(tmp_path, seed=1, uploads=1)
    more = back_up(tmp_path / "store", tmp_path / "backup")
    assert 0 < more.copied_objects < more.manifest.objects


@pytest.mark.parametrize(("command", "name"), KILLS)
def test_killed_anywhere_the_backup_before_stands(tmp_path: Path, command: str, name: str) -> None:
    source, target, new = (str(tmp_path / one) for one in ("store", "backup", "new"))
    write(tmp_path)
    before = rows(tmp_path / "store")
    assert lakehead_command("backup", target, "--path", source).returncode == 0
    write(tmp_path, seed=1)
    after = rows(tmp_path / "store")
    backup = ("backup", target, "--path", source)
    restore = ("restore", target, new)
    if command == "backup":
        assert lakehead_command(*backup, failpoint=name).returncode == KILLED
        bring_back(tmp_path / "backup", tmp_path / "killed")
        is_complete = name == "backup_manifest_put"
        assert rows(tmp_path / "killed") == (after if is_complete else before)
        assert lakehead_command(*backup).returncode == 0
    else:
        assert lakehead_command(*backup).returncode == 0
        assert lakehead_command(*restore, failpoint=name).returncode == KILLED
    done = lakehead_command(*restore)
    if name == "restore_published":
        assert "holds a cluster already" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "new") == after
    assert is_sound(tmp_path / "new")


def test_killed_while_it_prunes_a_backup_leaves_the_others(tmp_path: Path) -> None:
    source, target = tmp_path / "store", tmp_path / "backup"
    for seed in range(3):
        write(tmp_path, seed=seed, uploads=1)
        back_up(source, target, kept=Kept(hours=0))
    write(tmp_path, seed=3, uploads=1)
    replace_objects(source)
    command = ("backup", str(target), "--path", str(source), "--keep-hours", "0")
    assert lakehead_command(*command, failpoint="backup_manifest_deleted").returncode == KILLED
    before = rows(source)
    bring_back(target, tmp_path / "new")
    assert rows(tmp_path / "new") == before
    assert lakehead_command(*command).returncode == 0
    # Two backups are left, both of the same moment; and nothing that neither names.
    state = in_log(tmp_path)
    kept = {one.name for one in (target / "data").rglob("*") if one.is_file()}
    named = {key.rpartition("/")[2] for key in state.objects if key not in state.unreferenced}
    assert kept == named


def test_objects_that_a_restored_cluster_names_again_stay(tmp_path: Path) -> None:
    """The cluster of an earlier backup names objects that the backups since then do not: they stay
    when the earlier backup goes.
    """
    write(tmp_path)
    before = rows(tmp_path / "store")
    target, restored = tmp_path / "backup", tmp_path / "restored" / "store"
    back_up(tmp_path / "store", target)
    replace_objects(tmp_path / "store")
    back_up(tmp_path / "store", target)
    bring_back(target, restored, 0)
    back_up(restored, target, kept=Kept(newest=2, hours=0))
    assert sorted(one.name for one in (target / "backup" / "manifest").iterdir()) == [
        f"{number:020d}.json" for number in (1, 2)
    ]
    bring_back(target, tmp_path / "again", 2)
    assert rows(tmp_path / "again") == before


class Busy(FileStore):
    """A cluster that merges and deletes objects while they are copied."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.is_due = True

    async def get(self, key: str) -> bytes:
        if key.startswith("data/") and self.is_due:
            self.is_due = False
            await asyncio.to_thread(replace_objects, self.root)
        return await super().get(key)


def test_objects_that_are_deleted_meanwhile_are_replaced_by_newer_ones(tmp_path: Path) -> None:
    write(tmp_path)
    before = rows(tmp_path / "store")
    back_up(Busy(tmp_path / "store"), tmp_path / "backup")
    bring_back(tmp_path / "backup", tmp_path / "new")
    assert rows(tmp_path / "new") == before
    assert is_sound(tmp_path / "new")


class Hasty(FileStore):
    """A cluster that appends and uploads before each look at an object of a write-ahead log, and
    deletes the object.
    """

    def __init__(self, root: Path, upload: Callable[[], Awaitable[None]]) -> None:
        super().__init__(root)
        self.root = root
        self.looks = 0
        self._upload = upload

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        await self._hurry(key)
        return await super().get_suffix(key, length)

    async def get(self, key: str) -> bytes:
        await self._hurry(key)
        return await super().get(key)

    async def _hurry(self, key: str) -> None:
        if key.startswith("wal/") and self.looks < 200:
            self.looks += 1
            await self._upload()
            is_gone = functools.partial(wait_until, lambda: not (self.root / key).exists(), 10)
            await asyncio.to_thread(is_gone)


async def test_a_backup_ends_however_fast_nodes_upload(tmp_path: Path) -> None:
    """Each object of the log is gone when it is looked at, and the log has new ones each time."""
    folder = tmp_path / "store"
    async with broker(folder, LAZY) as (engine, streams):

        async def upload() -> None:
            await engine.upload_now()
            for stream in streams:
                await append(stream)

        source = Hasty(folder, upload)
        clock, rng = SystemClock(), random.Random(5)
        log = await MetadataLog.open(source, writer_id="backup/1", clock=clock, rng=rng)
        target = FileStore(tmp_path / "backup")
        backups = await Backups.open(source, target, log, clock=clock, rng=rng, kept=Kept(hours=0))
        for _ in range(3):
            acknowledged = [await append(stream, 5) for stream in streams]
            done = await backups.make()
            state = await read_state(target, done.manifest)
            ends = [state.stream(one).end_offset for one in state.topics["t"].partitions]
            assert all(has >= least for has, least in zip(ends, acknowledged, strict=True))
            restored = tmp_path / f"restored {done.manifest.number}"
            await asyncio.to_thread(bring_back, tmp_path / "backup", restored)
            rows_of = [row["partition"] for row in await asyncio.to_thread(rows, restored)]
            assert [rows_of.count(index) for index in range(2)] == ends
        assert 0 < source.looks < 50


def test_an_object_that_is_missing_at_the_source_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    lost = next(iter(in_log(tmp_path).objects))
    (tmp_path / "store" / lost).unlink()
    with pytest.raises(CorruptObject, match=lost):
        back_up(tmp_path / "store", tmp_path / "backup")


def test_an_object_that_is_damaged_at_the_source_is_copied_and_named(tmp_path: Path) -> None:
    write(tmp_path)
    store = tmp_path / "store"
    damaged = store / next(iter(in_log(tmp_path).objects))
    body = bytearray(damaged.read_bytes())
    body[40] ^= 1
    damaged.chmod(0o600)
    damaged.write_bytes(body)
    done = lakehead_command(
        "backup", str(tmp_path / "backup"), "--path", str(tmp_path / "store"), "--json"
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["damaged_objects"] == 1
    assert json.loads(done.stdout)["damaged"] == [{"object": damaged.relative_to(store).as_posix()}]


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_with_what_has_arrived_so_far_gives_an_earlier_state(
    tmp_path: Path, seed: int
) -> None:
    """As S3 replication leaves a prefix: objects arrive in any order."""
    rng = random.Random(seed)
    write(tmp_path, seed=seed, uploads=5)
    full = rows(tmp_path / "store")
    names = sorted(one for one in (tmp_path / "store").rglob("*") if one.is_file())
    for name in names:
        if rng.random() < 0.95:
            place = tmp_path / "copy" / name.relative_to(tmp_path / "store")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, place)
    try:
        restored = bring_back(tmp_path / "copy", tmp_path / "new")
    except NotFound:
        return  # not even the first entry, with the cluster's id, was there
    if "t" not in restored.state.topics:
        return
    found = rows(tmp_path / "new")
    for partition in range(3):
        have = [row for row in found if row["partition"] == partition]
        assert have == [row for row in full if row["partition"] == partition][: len(have)]
    assert is_sound(tmp_path / "new")


def test_places_with_something_else_in_them_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "other")
    store, backup, again = tmp_path / "store", tmp_path / "backup", tmp_path / "again"
    back_up(store, backup)
    back_up(store, again)
    with pytest.raises(RequestRefused, match="holds a cluster"):
        back_up(store, tmp_path / "other" / "store")
    with pytest.raises(RequestRefused, match="holds a cluster already"):
        bring_back(backup, tmp_path / "other" / "store")
    with pytest.raises(RequestRefused, match="holds backups"):
        bring_back(backup, again)
    with pytest.raises(NotFound, match="no backup 7"):
        bring_back(backup, tmp_path / "new", 7)
    with pytest.raises(NotFound, match="neither a backup nor a cluster"):
        bring_back(tmp_path / "empty", tmp_path / "new")


def test_no_node_begins_a_new_cluster_among_backups(tmp_path: Path) -> None:
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "folder" / "store")
    with pytest.raises(SettingsError, match="holds backups of a cluster"):
        write(tmp_path / "folder")


def test_a_place_has_the_backups_of_one_cluster(tmp_path: Path) -> None:
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    write_topic(tmp_path / "other", "u", {0: [b"1"]})
    with pytest.raises(SettingsError, match="backups of another cluster"):
        back_up(tmp_path / "other", tmp_path / "backup")


def test_restored_in_place_it_takes_no_further_backups(tmp_path: Path) -> None:
    write(tmp_path)
    before = rows(tmp_path / "store")
    back_up(tmp_path / "store", tmp_path / "backup")
    bring_back(tmp_path / "backup")
    assert rows(tmp_path / "backup") == before
    with pytest.raises(RequestRefused, match="holds a cluster"):
        back_up(tmp_path / "store", tmp_path / "backup")


def test_the_commands_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    write(tmp_path)
    store, backup = str(tmp_path / "store"), str(tmp_path / "backup")
    assert "give a backup another place" in command_line.fails("backup", store, "--path", store)
    assert command_line("backup", backup, "--path", store).status == 0
    assert "give a TARGET, or --in-place" in command_line.fails("restore", backup)
    assert "there is --in-place" in command_line.fails("restore", backup, backup)
    shown = command_line("restore", backup, "--dry-run", "--json")
    assert json.loads(shown.out)["partitions"] == 3
    assert not (tmp_path / "backup" / "meta").exists()
    restored = command_line("restore", backup, str(tmp_path / "new"), "--json")
    assert json.loads(restored.out)["topics"] == 1


def test_the_first_of_each_hour_is_kept_and_the_two_newest() -> None:
    hour = 3_600_000
    backups = [
        Manifest(
            number=number,
            cluster_id="c",
            position_ms=number * hour // 4,
            next_entry=number,
            state=str(number),
            objects=0,
            size=0,
        )
        for number in range(23)
    ]
    now = backups[-1].position_ms
    assert kept_numbers(backups, Kept(hours=3), now) == {12, 16, 20, 21, 22}
    assert kept_numbers(backups, Kept(hours=0), now) == {21, 22}
    assert kept_numbers(backups[:1], Kept(hours=0), 0) == {0}
    assert kept_numbers(backups, Kept(newest=5, hours=0), now) == {18, 19, 20, 21, 22}


async def opened_log(folder: Path) -> tuple[FileStore, MetadataLog]:
    await asyncio.to_thread(write, folder)
    source, clock, rng = FileStore(folder / "store"), SystemClock(), random.Random(5)
    return source, await MetadataLog.open(source, writer_id="backup/1", clock=clock, rng=rng)


async def test_it_waits_for_the_records_of_a_dead_node(tmp_path: Path) -> None:
    """While streams have inherited tails, records of theirs lie on a disk alone."""
    source, log = await opened_log(tmp_path)
    target, clock, rng = FileStore(tmp_path / "backup"), SystemClock(), random.Random(5)
    backups = await Backups.open(source, target, log, clock=clock, rng=rng, kept=Kept(hours=0))
    looks = 0
    real = backups._tails.at_newest

    async def with_a_tail(log: MetadataLog, listing: WalListing) -> MetadataImage:
        nonlocal looks
        looks += 1
        state = await real(log, listing)
        return replace(state, tails=Map({"data/00/1-1-1": 1})) if looks == 1 else state

    backups._tails.at_newest = with_a_tail  # type: ignore[method-assign]
    done = await backups.make()
    assert looks == 2
    assert not (await read_state(target, done.manifest)).tails


async def inherit(log: MetadataLog, source: FileStore) -> r.CommitTail:
    """Have a stream whose records lie in the log of node 7, which died; return what commits them,
    in an object that is not there.
    """
    (live,) = log.state.nodes.values()
    taker = {"taker_id": live.node_id, "taker_epoch": live.epoch}
    stream_id, topic_id = log.state.next_stream_id, "7" * 32
    await log.commit(
        [
            r.RegisterNode(node_id=7, epoch=0, incarnation="i", host="h", port=1),
            r.CreateTopic(name="inherited", topic_id=topic_id),
            r.CreateStream(stream_id=stream_id, topic_id=topic_id, partition=0),
            r.OpenStream(stream_id=stream_id, epoch=0, node_id=7, node_epoch=0),
            r.FenceNode(node_id=7, epoch=0),
        ]
    )
    span = r.CommittedRange(
        stream_id=stream_id, epoch=0, start_offset=0, end_offset=5, max_timestamp=0, size=1
    )
    tail, made = (
        r.CommittedObject(key=f"data/{kind}", kind=kind, size=100, created_ms=0, ranges=(span,))
        for kind in (r.TAIL, "so")
    )
    await source.create(tail.key, [bytes(100)])
    await log.commit([r.InheritTail(node_id=7, node_epoch=0, objects=(tail,), **taker)])
    return r.CommitTail(
        node_id=7, sources=(tail.key,), objects=(made,), streams=(stream_id,), **taker
    )


async def test_a_lost_log_of_a_dead_node_does_not_keep_a_cluster_from_backups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its loss is accepted its tails stay. The backup names the node."""
    monkeypatch.setattr("lakehead.storage.backup.run._TAIL_LOOKS", 2)
    source, log = await opened_log(tmp_path)
    await inherit(log, source)
    target, clock, rng = FileStore(tmp_path / "backup"), SystemClock(), random.Random(5)
    backups = await Backups.open(source, target, log, clock=clock, rng=rng, kept=Kept(hours=0))
    done = await backups.make()
    named = [(one.node_id, one.streams) for one in done.manifest.logs_elsewhere]
    assert named == [(7, 1)]
    restored = await asyncio.to_thread(bring_back, tmp_path / "backup", tmp_path / "restored")
    assert "inherited" in restored.state.topics
    assert not restored.state.tails


async def test_a_copy_without_the_objects_of_an_inherited_tail_has_all_the_rest(
    tmp_path: Path,
) -> None:
    """Records that lie in the log of a dead node were in no earlier state either: one before the
    tail would lose what came after it, too.
    """
    source, log = await opened_log(tmp_path)
    commit_tail = await inherit(log, source)
    before = log.state.next_entry
    await log.commit([commit_tail])
    point = await find_point(source)
    assert point.state.next_entry == before
    assert point.missing == (commit_tail.objects[0].key,)
    restored = await asyncio.to_thread(bring_back, tmp_path / "store", tmp_path / "restored")
    assert not restored.state.tails
    await source.create(commit_tail.objects[0].key, [bytes(100)])
    assert (await find_point(source)).state.next_entry == log.state.next_entry


def put(folder: Path, key: str, body: bytes) -> Path:
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def test_a_first_backup_among_files_of_others_is_refused_and_leaves_them(tmp_path: Path) -> None:
    write(tmp_path)
    target = tmp_path / "backup"
    report = put(target, "data/report.csv", b"of the user")
    with pytest.raises(SettingsError, match=r"data/report\.csv, which is not of this cluster"):
        back_up(tmp_path / "store", target)
    assert report.exists()


def test_a_first_backup_among_objects_of_another_cluster_is_refused_and_leaves_them(
    tmp_path: Path,
) -> None:
    """The metadata of that cluster are lost, and may be made again of its objects."""
    write(tmp_path)
    values = {0: [TestRecord(offset=0, key=b"k", value=b"of another cluster")]}
    write_topic(tmp_path / "other" / "store", "u", values)
    target = tmp_path / "backup"
    shutil.copytree(tmp_path / "other" / "store" / "data", target / "data")
    before = sorted(target.rglob("*"))
    with pytest.raises(SettingsError, match="is not of this cluster"):
        back_up(tmp_path / "store", target)
    assert sorted(target.rglob("*")) == before


def test_files_that_come_beside_backups_are_left_there(tmp_path: Path) -> None:
    write(tmp_path)
    target = tmp_path / "backup"
    back_up(tmp_path / "store", target)
    others = [
        put(target, "data/report.csv", b"of the user"),
        put(target, JobName(1, 7).key, b"of an unknown program, " * 10),
    ]
    back_up(tmp_path / "store", target)
    assert all(one.exists() for one in others)


def test_as_a_job_it_keeps_the_newest(tmp_path: Path) -> None:
    write(tmp_path)
    store, target = str(tmp_path / "store"), tmp_path / "backup"
    options = BackupOptions(target=str(target), keep_last=3, keep_hours=0)
    planned = plan_job(BACKUP, store, options)
    assert planned.fields["objects_to_copy"] > 0
    assert not target.exists()
    done = [run_job(BACKUP, store, options) for _ in range(5)]
    assert [one.backup for one in done] == list(range(5))
    assert [one.copied_objects for one in done[1:]] == [0] * 4
    assert planned.size == done[0].copied_bytes
    manifests = sorted(path.stem for path in (target / "backup" / "manifest").iterdir())
    assert [int(name) for name in manifests] == [2, 3, 4]
    assert bring_back(target, tmp_path / "new" / "store").state.topics
    with pytest.raises(SettingsError, match="needs a target"):
        run_job(BACKUP, store)


def test_a_cluster_that_comes_back_makes_no_backups_beside_those_of_its_restored_twin(
    tmp_path: Path,
) -> None:
    """Both have one id and one target, where the newest backup is the one to restore."""
    write(tmp_path / "old")
    back_up(tmp_path / "old" / "store", tmp_path / "backup")
    bring_back(tmp_path / "backup", tmp_path / "new" / "store")
    write(tmp_path / "new", seed=1)
    newest = rows(tmp_path / "new" / "store")
    back_up(tmp_path / "new" / "store", tmp_path / "backup")
    write(tmp_path / "old", seed=2)
    with pytest.raises(SettingsError, match="a newer state of this cluster"):
        back_up(tmp_path / "old" / "store", tmp_path / "backup")
    bring_back(tmp_path / "backup", tmp_path / "again")
    assert rows(tmp_path / "again") == newest


class GivenClock(SystemClock):
    """Seconds pass as the test sets them."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class FullStore(FileStore):
    """While it `is_full` it takes no data."""

    is_full = False

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.is_full and key.startswith("data/"):
            raise StoreUnavailable(f"{key}: no space left")
        await super().create(key, pieces)


@pytest.mark.parametrize("is_full", [False, True])
async def test_objects_that_vanish_from_the_target_are_copied_again(
    tmp_path: Path, is_full: bool
) -> None:
    """A rule of the bucket may delete what is old, while one process makes backups for weeks. If
    they cannot be copied at once, the next backup has them.
    """
    await asyncio.to_thread(write, tmp_path)
    source, target = FileStore(tmp_path / "store"), FullStore(tmp_path / "backup")
    clock, rng = GivenClock(), random.Random(1)
    log = await MetadataLog.open(source, writer_id="backup/1", clock=clock, rng=rng)
    backups = await Backups.open(source, target, log, clock=clock, rng=rng, kept=Kept())
    first = await backups.make()
    shutil.rmtree(tmp_path / "backup" / "data")
    clock.seconds = 3600.0
    if is_full:
        target.is_full = True
        with pytest.raises(StoreUnavailable):
            await backups.make()
        target.is_full = False
        clock.seconds += 10.0
    again = await backups.make()
    assert again.copied_objects == first.copied_objects > 0
    found = await find_point(target)
    assert found.manifest is not None
    assert found.manifest.number == 1


def test_a_place_that_became_a_cluster_and_a_folder_of_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    write(tmp_path)
    assert command_line("backup", str(tmp_path), "--path", str(tmp_path)).status == 0
    shown = json.loads(command_line("restore", str(tmp_path), "--dry-run", "--json").out)
    assert shown["backup"] == 0, "the backups, and not the cluster in its folder store"
    copy = tmp_path / "copy"
    assert command_line("backup", str(copy), "--path", str(tmp_path)).status == 0
    assert command_line("restore", str(copy), "--in-place").status == 0
    assert not (copy / "backup" / "restoring").exists()
    again = command_line.fails("restore", str(copy), "--in-place")
    assert "was made a cluster of a backup already: start its nodes there" in again
