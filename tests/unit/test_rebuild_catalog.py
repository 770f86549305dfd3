"""`rebuild-catalog`: without its metadata a cluster comes back, record for record."""

import json
import random
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakehead
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.job import plan_job, run_job
from lakehead.storage.jobs.rebuild_catalog import JOB as REBUILD
from lakehead.storage.jobs.rebuild_catalog import RebuildOptions
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions, find_leaks, items_of, sweep_item
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.metadata.records import TopicConfig
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.rebuild.catalog import AT_ONCE_MAX, Offsets
from tests.integration.test_compaction_crashes import in_log, maintain
from tests.support.command_line import CommandLine
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic


def write(folder: Path, topic: str = "t", partitions: int = 3, uploads: int = 4) -> None:
    rng = random.Random(topic)
    for number in range(uploads):
        values = {
            partition: [
                TestRecord(offset=0, key=b"k%d" % rng.randrange(9), value=b"%d %d" % (number, n))
                for n in range(rng.randint(1, 30))
            ]
            for partition in range(partitions)
            if partition != 1
        }
        write_topic(folder / "store", topic, values, partitions=partitions, batch_records=3)


def rows(folder: Path, topic: str = "t") -> list[dict[str, object]]:
    return list(lakehead.scan(str(folder / "store"), topic).read_all().to_pylist())


def merge(folder: Path) -> None:
    assert run_job(COMPACT, str(folder / "store"), CompactObjectsOptions(count_min=2)).items


def wipe(folder: Path) -> None:
    shutil.rmtree(folder / "store" / "meta")


def rebuild(folder: Path, *, replace: bool = False) -> MetadataImage:
    return run_job(REBUILD, str(folder / "store"), RebuildOptions(replace=replace)).rebuilt.state


def is_sound(folder: Path) -> bool:
    return run_job(VERIFY, str(folder / "store")).damages == ()


@pytest.mark.parametrize("merged_after", [None, 1, 3])
def test_every_record_comes_back_at_its_offset(tmp_path: Path, merged_after: int | None) -> None:
    for number in range(2):
        write(tmp_path)
        write(tmp_path, "u", partitions=1)
        if merged_after == 1 + 2 * number:
            merge(tmp_path)
    before = {topic: rows(tmp_path, topic) for topic in ("t", "u")}
    old = in_log(tmp_path)
    wipe(tmp_path)
    new = rebuild(tmp_path)
    assert in_log(tmp_path) == new
    assert {topic: rows(tmp_path, topic) for topic in ("t", "u")} == before
    assert is_sound(tmp_path)
    for stream_id, stream in old.streams.items():
        if not stream.end_offset:
            continue
        assert new.streams[stream_id].epochs == stream.epochs
        assert new.streams[stream_id].extents == stream.extents
        assert new.streams[stream_id].state_from == stream.state_from
    assert new.topics["t"].topic_id == old.topics["t"].topic_id
    assert new.topics["t"].partitions[0] == old.topics["t"].partitions[0]
    assert len(new.topics["t"].partitions) == 3
    write(tmp_path)  # and it goes on
    found = rows(tmp_path)
    assert [row for row in found if row in before["t"]] == before["t"]
    assert len(found) > len(before["t"])
    assert is_sound(tmp_path)


def test_tables_go_on_where_they_were_and_have_no_row_twice(tmp_path: Path) -> None:
    """A table knows its topic by its id, which the objects name."""
    write(tmp_path)
    settings = MaterializeSettings(
        path=str(tmp_path / "store"),
        topic="t",
        table=str(tmp_path / "table"),
        value_format="raw",
        workers=1,
    )
    first = materialize(settings).records
    wipe(tmp_path)
    rebuild(tmp_path)
    assert materialize(settings).records == 0
    write(tmp_path)
    assert materialize(settings).records > 0
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    places = [(row["_partition"], row["_offset"]) for row in table]
    assert len(set(places)) == len(places) > first
    assert sorted(places) == sorted((row["partition"], row["offset"]) for row in rows(tmp_path))


def test_what_was_compacted_by_keys_comes_back_as_it_was(tmp_path: Path) -> None:
    write(tmp_path)
    configs: dict[str, str | None] = {"cleanup.policy": "compact"}
    in_log(tmp_path, TopicConfig(topic_id=in_log(tmp_path).topics["t"].topic_id, configs=configs))
    assert maintain(tmp_path).returncode == 0
    before = rows(tmp_path)
    wipe(tmp_path)
    assert not rebuild(tmp_path).topics["t"].configs
    assert rows(tmp_path) == before
    assert is_sound(tmp_path)


def test_offsets_that_are_gone_are_bridged_and_told(tmp_path: Path) -> None:
    write(tmp_path)
    before = rows(tmp_path)
    stream = in_log(tmp_path).streams[0]
    lost = stream.extents[1]
    (tmp_path / "store" / lost.object_key).unlink()
    wipe(tmp_path)
    result = run_job(REBUILD, str(tmp_path / "store"))
    (told, other) = result.rebuilt.lost
    assert (told.topic, told.partition, told.start_offset, told.end_offset) == (
        "t",
        0,
        lost.start_offset,
        lost.end_offset,
    )
    assert other.partition == 2
    gone = {
        (one.partition, offset)
        for one in result.rebuilt.lost
        for offset in range(one.start_offset, one.end_offset)
    }
    assert rows(tmp_path) == [
        row for row in before if (row["partition"], row["offset"]) not in gone
    ]
    assert is_sound(tmp_path)


@pytest.mark.parametrize(("uploads", "is_cut"), [(9, True), (AT_ONCE_MAX + 9, False)])
def test_a_stream_ends_where_a_crash_left_a_later_upload_without_an_earlier_one(
    tmp_path: Path, uploads: int, is_cut: bool
) -> None:
    """But a hole that is further away than uploads reach is a loss, and bridged."""
    values = [b"%d" % number for number in range(uploads)]
    write_topic(tmp_path / "store", "t", {0: values}, batch_records=1, object_size=1)
    extents = in_log(tmp_path).streams[0].extents
    missing = extents[3]
    (tmp_path / "store" / missing.object_key).unlink()
    wipe(tmp_path)
    rebuilt = run_job(REBUILD, str(tmp_path / "store")).rebuilt
    hole = Offsets(topic="t", partition=0, start_offset=3, end_offset=4)
    tail = Offsets(topic="t", partition=0, start_offset=4, end_offset=uploads)
    assert rebuilt.set_aside == ((tail,) if is_cut else ())
    assert rebuilt.lost == (() if is_cut else (hole,))
    kept = values[:3] if is_cut else values[:3] + values[4:]
    assert [row["value"] for row in rows(tmp_path)] == kept
    write_topic(tmp_path / "store", "t", {0: [b"more"]})
    assert [row["value"] for row in rows(tmp_path)] == [*kept, b"more"]
    assert is_sound(tmp_path)


def test_metadata_that_can_be_read_are_left_alone_unless_told(tmp_path: Path) -> None:
    write(tmp_path)
    before, state = rows(tmp_path), in_log(tmp_path)
    with pytest.raises(SettingsError, match="--replace"):
        rebuild(tmp_path)
    planned = plan_job(REBUILD, str(tmp_path / "store"))
    assert planned.found.rebuilt.state.next_entry >= state.next_entry
    assert in_log(tmp_path) == state
    new = rebuild(tmp_path, replace=True)
    assert in_log(tmp_path) == new != state
    assert rows(tmp_path) == before
    kept = tmp_path / "store" / f"meta-before-{new.next_entry}"
    (tmp_path / "store" / "meta").rename(tmp_path / "rebuilt")
    kept.rename(tmp_path / "store" / "meta")
    assert in_log(tmp_path) == state, "the copy is whole"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_sweep_leaves_what_a_rebuild_has_left_out(tmp_path: Path, *, is_lost: bool) -> None:
    """The old metadata, whose copy is kept, name it; or nobody has looked yet whether it counts."""
    write(tmp_path)
    write(tmp_path, "u")
    store = tmp_path / "store"
    if is_lost:
        wipe(tmp_path)
    run_job(REBUILD, str(store), RebuildOptions(without=("u",), replace=not is_lost))
    objects = {path for path in store.glob("data/*/*") if path.is_file()}
    at_once = SweepOptions(grace_s=0, margin_s=0)
    assert not [one for one in plan_job(SWEEP, str(store), at_once).units if one.key]
    assert run_job(SWEEP, str(store), at_once).objects == 0
    leaks = find_leaks(str(store))
    assert leaks.held
    assert leaks.is_clean
    assert all(path.exists() for path in objects)
    for kept in store.glob("meta-before-*"):
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    planned = items_of(plan_job(SWEEP, str(store), at_once).units)
    run_job(REBUILD, str(store), RebuildOptions(without=("u",), replace=True))
    assert sum(sweep_item(item).objects for item in planned) == 0, "planned before the rebuild"
    for kept in store.glob("meta-before-*"):
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    assert run_job(SWEEP, str(store), at_once).objects == len(leaks.held)
    assert rows(tmp_path)
    assert is_sound(tmp_path)


def test_the_command_shows_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    write(tmp_path)
    write(tmp_path, "u")
    wipe(tmp_path)
    path = ("--path", str(tmp_path / "store"))
    assert "quotas" in lakehead("rebuild-catalog", *path, "--dry-run").out
    assert "quotas" in lakehead("rebuild-catalog", "--path", str(tmp_path), "--dry-run").out
    assert not (tmp_path / "store" / "meta").exists()
    figures = json.loads(lakehead("rebuild-catalog", *path, "--without", "u", "--json").out)
    assert (figures["topics"], figures["lost_ranges_of_offsets"]) == (1, 0)
    assert "none" in lakehead.fails("rebuild-catalog", "--path", str(tmp_path / "empty"))
