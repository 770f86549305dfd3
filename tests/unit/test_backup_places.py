"""Places of backups that are wrong, shared, slow to obey, or of another time: no backup and no
cluster loses anything there.
"""

import asyncio
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from lakehead.storage.backup.followed_copy import follow_copy
from lakehead.storage.backup.manifest import list_manifests, manifest_key, read_manifest
from lakehead.storage.backup.pruning import Kept
from lakehead.storage.backup.restore import find_point, restore_cluster
from lakehead.storage.backup.run import Backups
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import (
    OutcomeUnknown,
    RequestRefused,
    SettingsError,
    StoreUnavailable,
    UnsupportedFormat,
)
from lakehead.storage.format.batch_writer import KeyValue
from lakehead.storage.format.checked_json import with_checksum
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.run_record import PREFIX as RUNS
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.metadata.entry import entry_key
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore, ObjectStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from tests.integration.test_compaction_crashes import in_log
from tests.support.backups import back_up, bring_back
from tests.support.command_line import CommandLine
from tests.support.topic_writer import write_topic
from tests.unit.test_backup import is_sound, replace_objects, rows, write
from tests.unit.test_followed_copy import files

BAD_DAY = FaultProfile(unavailable=0.03, lost_request=0.05, lost_response=0.05)


def test_a_place_of_the_cluster_by_another_name_takes_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    write(tmp_path)
    store = tmp_path / "store"
    (tmp_path / "link").symlink_to(store)
    before = files(store)
    for name in (tmp_path / "link", tmp_path / "other" / ".." / "store", f"file:{store}"):
        refused = command_line.fails("backup", str(name), "--path", str(store))
        assert "holds a cluster" in refused or "the cluster itself is in" in refused
    assert {name for name in files(store) if not name.startswith(RUNS)} == before


def test_a_restore_over_its_own_source_by_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    write(tmp_path)
    store, backup = tmp_path / "store", tmp_path / "backup"
    back_up(store, backup)
    for place, reason in ((store, "holds a cluster already"), (backup, "holds backups")):
        link = tmp_path / f"link to {place.name}"
        link.symlink_to(place)
        before = files(place)
        assert reason in command_line.fails("restore", str(place), str(link))
        assert files(place) == before


def test_a_restore_to_a_data_folder_is_refused_since_commands_would_go_on_with_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    data = tmp_path / "data"
    write(data)
    before = files(data)
    refused = command_line.fails("restore", str(data / "store"), str(data))
    assert "holds a cluster already, in its folder store: restore to an empty folder" in refused
    assert files(data) == before
    new = tmp_path / "new" / "store"
    assert command_line("restore", str(data / "store"), str(new)).status == 0


@pytest.mark.parametrize("inside", ["copies", "data/copies", "meta/copies", "backup"])
def test_backups_inside_the_prefix_of_the_cluster_are_whole_and_stay(
    tmp_path: Path, inside: str
) -> None:
    """Neither takes what is of the other for its own."""
    write(tmp_path)
    store = tmp_path / "store"
    before = rows(store)
    back_up(store, store / inside)
    write(tmp_path, seed=1)
    replace_objects(store)
    run_job(SWEEP, str(store), SweepOptions(grace_s=0, margin_s=0))
    bring_back(store / inside, tmp_path / "first")
    assert rows(tmp_path / "first") == before
    back_up(store, store / inside)
    bring_back(store / inside, tmp_path / "second")
    assert rows(tmp_path / "second") == rows(store)
    assert is_sound(store)
    assert in_log(tmp_path).topics


async def opened(
    source: ObjectStore,
    target: ObjectStore,
    *,
    clock: Clock | None = None,
    kept: Kept | None = None,
) -> Backups:
    clock, rng = clock or SystemClock(), random.SystemRandom()
    log = await MetadataLog.open(source, writer_id="backup/1", clock=clock, rng=rng)
    return await Backups.open(
        source, target, log, clock=clock, rng=rng, kept=kept or Kept(newest=1, hours=0)
    )


async def test_of_two_processes_in_one_place_one_goes_on_and_its_backups_are_whole(
    tmp_path: Path,
) -> None:
    source, target = FileStore(tmp_path / "store"), FileStore(tmp_path / "backup")
    await asyncio.to_thread(write, tmp_path)
    both = [await opened(source, target), await opened(source, target)]
    rng = random.Random(3)
    ended: set[int] = set()
    for seed in range(6):
        await asyncio.to_thread(write, tmp_path, seed=seed + 1, uploads=1)
        await asyncio.to_thread(replace_objects, tmp_path / "store")
        turns = [number for number in (0, 1) if number not in ended]
        rng.shuffle(turns)
        done = await asyncio.gather(
            *(both[number].make() for number in turns), return_exceptions=True
        )
        for number, outcome in zip(turns, done, strict=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, RequestRefused), outcome
                ended.add(number)
        restored = tmp_path / f"restored {seed}"
        await asyncio.to_thread(bring_back, tmp_path / "backup", restored)
        assert await asyncio.to_thread(rows, restored) == await asyncio.to_thread(
            rows, tmp_path / "store"
        )
    assert len(ended) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_a_target_that_fails_in_the_middle_has_whole_backups_alone(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    target = FaultyStore(FileStore(tmp_path / "backup"), rng=rng, profile=BAD_DAY)
    made = 0
    for stage in range(4):
        await asyncio.to_thread(write, tmp_path, seed=stage)
        if stage == 2:
            await asyncio.to_thread(replace_objects, tmp_path / "store")
        expected = await asyncio.to_thread(rows, tmp_path / "store")
        for _ in range(200):
            try:
                backups = await opened(FileStore(tmp_path / "store"), target)
                await backups.make()
                break
            except (StoreUnavailable, OutcomeUnknown):
                plain = FileStore(tmp_path / "backup")
                if numbers := await list_manifests(plain):
                    newest = (await find_point(plain)).manifest
                    assert newest is not None
                    assert newest.number == numbers[-1], "the newest is whole"
        else:
            raise AssertionError("it never came to its end")
        made += 1
        place = tmp_path / f"restored {stage}"
        await asyncio.to_thread(bring_back, tmp_path / "backup", place)
        assert await asyncio.to_thread(rows, place) == expected
    assert made == 4
    assert target.faults > 0


@pytest.mark.parametrize("seed", range(4))
async def test_a_restore_into_a_store_that_fails_ends_in_the_whole_cluster_or_none(
    tmp_path: Path, seed: int
) -> None:
    await asyncio.to_thread(write, tmp_path)
    expected = await asyncio.to_thread(rows, tmp_path / "store")
    await asyncio.to_thread(back_up, tmp_path / "store", tmp_path / "backup")
    source, plain = FileStore(tmp_path / "backup"), FileStore(tmp_path / "new")
    target = FaultyStore(plain, rng=random.Random(seed), profile=BAD_DAY)
    clock, rng = SystemClock(), random.SystemRandom()
    for _ in range(200):
        try:
            await restore_cluster(
                await find_point(source), source, target, correct=_nothing, clock=clock, rng=rng
            )
            break
        except (StoreUnavailable, OutcomeUnknown):
            continue
        except RequestRefused:  # the checkpoint was there: an earlier try has ended unknown
            break
    assert await asyncio.to_thread(rows, tmp_path / "new") == expected
    assert await asyncio.to_thread(is_sound, tmp_path / "new")


async def _nothing(_store: ObjectStore, _state: MetadataImage) -> dict[int, list[KeyValue]]:
    return {}


class ShiftedClock(SystemClock):
    """A clock that is wrong by some hours."""

    def __init__(self, hours: int) -> None:
        self._shift_ms = hours * 3_600_000

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


@pytest.mark.parametrize("hours", [-100, 100])
async def test_a_wrong_clock_ends_no_backups_of_the_last_hours(tmp_path: Path, hours: int) -> None:
    """One process is moved to a machine whose clock is wrong, and back."""
    source, target = FileStore(tmp_path / "store"), FileStore(tmp_path / "backup")
    kept = Kept(newest=1, hours=24)
    for number in range(3):
        await asyncio.to_thread(write, tmp_path, seed=number, uploads=1)
        clock = ShiftedClock(number - 3)
        await (await opened(source, target, clock=clock, kept=kept)).make()
    before = await list_manifests(target)
    assert len(before) == 3
    wrong = await opened(source, target, clock=ShiftedClock(hours), kept=kept)
    await wrong.make()
    assert set(before) <= set(await list_manifests(target))
    await (await opened(source, target, kept=kept)).make()
    assert set(before) <= set(await list_manifests(target))
    for number in await list_manifests(target):
        assert (await find_point(target, number)).manifest is not None


async def test_backups_of_a_newer_release_are_refused_and_left(tmp_path: Path) -> None:
    await asyncio.to_thread(write, tmp_path)
    await asyncio.to_thread(back_up, tmp_path / "store", tmp_path / "backup")
    source, target = FileStore(tmp_path / "store"), FileStore(tmp_path / "backup")
    newer = replace_version(await read_manifest(target, 0))
    await target.create(manifest_key(1), [newer])
    before = files(tmp_path / "backup")
    for attempt in (opened(source, target), find_point(target), (await follow_copy(target)).look()):
        with pytest.raises(UnsupportedFormat, match="newer than this release: upgrade"):
            await attempt
    assert files(tmp_path / "backup") == before
    await asyncio.to_thread(bring_back, tmp_path / "backup", tmp_path / "older", 0)
    assert await asyncio.to_thread(rows, tmp_path / "older") == await asyncio.to_thread(
        rows, tmp_path / "store"
    )


def replace_version(manifest: object) -> bytes:
    fields = msgspec.to_builtins(manifest) | {"version": 2, "number": 1}
    return with_checksum(msgspec.json.encode(fields))


async def test_a_cluster_of_a_newer_release_is_not_copied_in_part(tmp_path: Path) -> None:
    await asyncio.to_thread(write, tmp_path)
    await asyncio.to_thread(back_up, tmp_path / "store", tmp_path / "backup")
    source, target = FileStore(tmp_path / "store"), FileStore(tmp_path / "backup")
    state = await asyncio.to_thread(in_log, tmp_path)
    entry = {"version": 99, "writer": "w", "nonce": "n", "time_ms": 1, "records": []}
    await source.create(entry_key(state.next_entry), [with_checksum(msgspec.json.encode(entry))])
    before = files(tmp_path / "backup")
    with pytest.raises(UnsupportedFormat):
        await opened(source, target)
    with pytest.raises(UnsupportedFormat):
        await find_point(source)
    assert files(tmp_path / "backup") == before


def test_a_restore_among_objects_of_another_cluster_is_refused_and_leaves_them(
    tmp_path: Path,
) -> None:
    """Clusters have objects of the same names: one that was there would count as restored."""
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    write_topic(tmp_path / "other" / "store", "u", {0: [b"of another cluster"]})
    target = tmp_path / "new"
    shutil.copytree(tmp_path / "other" / "store" / "data", target / "data")
    before = files(target)
    with pytest.raises(SettingsError, match="is not of this cluster"):
        bring_back(tmp_path / "backup", target)
    assert files(target) == before


def test_a_restore_over_a_truncated_object_of_the_same_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    back_up(tmp_path / "store", tmp_path / "backup")
    name = min(one for one in files(tmp_path / "backup") if one.startswith("data/"))
    place = tmp_path / "new" / name
    place.parent.mkdir(parents=True)
    place.write_bytes((tmp_path / "backup" / name).read_bytes()[:-100])
    with pytest.raises(SettingsError, match="is not of this cluster"):
        bring_back(tmp_path / "backup", tmp_path / "new")
