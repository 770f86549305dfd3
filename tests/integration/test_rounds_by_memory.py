"""A round of a table by upsert is merged in commits of bounded memory, however well its records are
compressed: each ends where a record batch ends, and each record is in the table once.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import cramjam
import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX, TABLES, TableDeclaration
from lakehead.lake.jobs import table_item, table_run
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_settings import MaterializeSettings, Unguarded, declared_settings
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import Table, open_table
from lakehead.lake.tables.table_history import commits_since
from lakehead.lake.tables.unavailable_values import PLACEHOLDER
from lakehead.storage.jobs.job import run_job
from tests.support.declared_topics import configure
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch, encode_record, seal_batch
from tests.support.small_groups import inflate_little
from tests.support.topic_writer import write_topic

BATCH = 10
KEYS = 37
TEXT = "well compressed " * 64


def change(number: int) -> TestRecord:
    """A put of one of `KEYS` keys, or the removal of its row."""
    key = b"%d" % (number % KEYS)
    value = json.dumps({"id": number % KEYS, "n": number, "text": TEXT}).encode()
    return TestRecord(
        offset=0,
        timestamp=1_700_000_000_000 + number,
        key=key,
        value=None if number % 11 == 0 else value,
    )


def expected(counts: dict[int, int]) -> dict[int, int]:
    """Return the `n` of each key. `counts` are the changes of each partition, which has keys of its
    own.
    """
    held: dict[int, int] = {}
    for partition, count in counts.items():
        for n in range(count):
            key = n % KEYS + 1000 * partition
            if n % 11 == 0:
                held.pop(key, None)
            else:
                held[key] = n
    return held


def changes(partition: int, count: int) -> list[TestRecord]:
    found = []
    for n in range(count):
        one = change(n)
        key = n % KEYS + 1000 * partition
        value = one.value
        if value is not None:
            value = json.dumps({"id": key, "n": n, "text": TEXT}).encode()
        found.append(replace(one, key=b"%d" % key, value=value))
    return found


@pytest.fixture
def settings(tmp_path: Path) -> MaterializeSettings:
    return MaterializeSettings(
        path=str(tmp_path / "cluster"),
        topic="orders",
        table=str(tmp_path / "table"),
        schema="id bigint, n bigint, text string",
        mode="upsert",
        workers=1,
        merge_bytes=100_000,
    )


def write(settings: MaterializeSettings, counts: dict[int, int]) -> None:
    values = {partition: changes(partition, count) for partition, count in counts.items()}
    write_topic(
        Path(settings.path), "orders", values, partitions=2, batch_records=BATCH, codec="zstd"
    )


def held(settings: MaterializeSettings) -> dict[int, int]:
    rows = DeltaTable(settings.table).to_pyarrow_table(columns=["id", "n"]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["n"] for row in rows}


def opened(settings: MaterializeSettings) -> Table:
    table = open_table(settings.table)
    assert table is not None
    return table


def commits(settings: MaterializeSettings) -> list[dict[int, tuple[int, int]]]:
    """The offsets that each commit has brought, the oldest first."""
    found = commits_since(opened(settings), -1)
    return [dict(one.change.offsets) for one in found if one.change.offsets]


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    inflate_little(monkeypatch, 12_000)


def test_each_commit_of_a_round_ends_with_a_record_batch_and_holds_little(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {0: 1000, 1: 333}
    write(settings, counts)
    sizes: list[int] = []
    staged = table_run._staged

    def watched(*given: Any) -> Any:
        rows = staged(*given)
        sizes.append(rows.nbytes)
        return rows

    monkeypatch.setattr(table_run, "_staged", watched)
    result = materialize(settings)
    assert held(settings) == expected(counts)
    assert result.commits == len(sizes) > 10
    assert result.records == 1333
    assert max(sizes) <= 1.3 * settings.merge_bytes
    ends = {0: 0, 1: 0}
    for offsets in commits(settings):
        for partition, (first, end) in offsets.items():
            assert first == ends[partition]
            assert end % BATCH == 0 or end == counts[partition]
            ends[partition] = end
    assert ends == counts
    assert materialize(settings).commits == 0


def test_a_batch_that_is_larger_than_all_a_commit_may_hold_goes_through(
    settings: MaterializeSettings,
) -> None:
    write(settings, {0: 200})
    result = materialize(replace(settings, merge_bytes=8))
    assert result.commits == 200 // BATCH
    assert held(settings) == expected({0: 200})


STEPS = ("materialize_files_written", "merge_done", "table_committed", "materialize_committed")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("scd", [1, 2])
def test_a_run_that_ends_between_the_commits_of_a_round_is_gone_on_with(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch, name: str, scd: int
) -> None:
    counts = {0: 400, 1: 100}
    write(settings, counts)
    history = replace(settings, scd=scd, merge_bytes=200_000)
    left = [0]

    def fail(reached: str) -> None:
        if reached == name:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    for module in ("jobs.table_run", "tables.delta_table", "tables.merge_engine"):
        monkeypatch.setattr(f"lakehead.lake.{module}.failpoint", fail)
    for nth in (1, 3, 2, 1):
        left[0] = nth
        try:
            materialize(history)
        except KeyboardInterrupt:
            continue
    left[0] = 0
    materialize(history)
    if scd == 1:
        assert held(settings) == expected(counts)
    rows = DeltaTable(settings.table).to_pyarrow_table(columns=["_partition", "_offset"])
    assert rows.num_rows == len(set(zip(*rows.to_pydict().values(), strict=True)))
    if scd == 2:  # every put, once
        assert rows.num_rows == sum(n % 11 != 0 for p, c in counts.items() for n in range(c))


def test_commits_of_a_round_that_another_run_overtakes_are_planned_again(
    settings: MaterializeSettings,
) -> None:
    write(settings, {0: 400})
    history = replace(settings, scd=2)
    reader = store_reader(settings.path)
    run = TableRun(history, reader, Unguarded())
    run.catch_up(reader.open_catalog(), rounds_max=1)
    assert run.has_more
    ahead = TableRun(history, reader, Unguarded())
    ahead.catch_up(reader.open_catalog(), rounds_max=3)
    run.catch_up(reader.open_catalog())
    rows = DeltaTable(settings.table).to_pyarrow_table(columns=["_offset"])
    offsets = rows.column("_offset").to_pylist()
    assert sorted(offsets) == [n for n in range(400) if n % 11]


def test_a_table_that_takes_turns_commits_once_a_turn(settings: MaterializeSettings) -> None:
    """Others wait for one commit, and work that is done is not done again."""
    write(settings, {0: 400})
    reader = store_reader(settings.path)
    run = TableRun(settings, reader, Unguarded())
    turns = 0
    while turns == 0 or run.has_more:
        run.catch_up(reader.open_catalog(), rounds_max=1)
        turns += 1
        assert run.result.commits == turns
    assert turns > 3
    assert held(settings) == expected({0: 400})


def test_a_table_of_several_commits_a_round_is_attested(settings: MaterializeSettings) -> None:
    write(settings, {0: 300, 1: 100})
    root = Path(settings.path)
    named = {"enable": "true", "value.format": "json", "schema": settings.schema or ""}
    named |= {"mode": "upsert", "path": settings.table}
    configure(root, "orders", {f"{PREFIX}{name}": text for name, text in named.items()})
    reader = store_reader(settings.path)
    (declared,) = TableDeclaration.each_of(reader.open_catalog().topic("orders"))
    small = replace(declared_settings(declared, settings.path), merge_bytes=100_000)
    run = TableRun(small, reader, Unguarded())
    run.catch_up(reader.open_catalog())
    assert run.result.commits > 3
    result = run_job(ATTEST, settings.path, AttestOptions(topic="orders"))
    assert [str(one) for one in result.found()] == []
    assert result.as_fields()["records"] == 400


def lying(first: int, count: int, *, says: int, content: bytes | None = None) -> bytes:
    """A batch that says it has `says` records, or whose frame says another size."""
    records = [replace(change(n), offset=first + n) for n in range(count)]
    body = b"".join(encode_record(one, first, records[0].timestamp) for one in records)
    packed = bytes(cramjam.zstd.compress(body)) if content is None else content
    return seal_batch(
        packed,
        base_offset=first,
        last_offset_delta=max(says, count) - 1,
        record_count=says,
        attributes=4,
        base_timestamp=records[0].timestamp,
    )


def _zstd_that_says(size: int, body: bytes) -> bytes:
    """A frame of zstd (RFC 8878) of raw blocks whose content size is a lie."""
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little")
    for start in range(0, len(body), 1 << 16):
        block = body[start : start + (1 << 16)]
        is_last = start + (1 << 16) >= len(body)
        frame += ((len(block) << 3) | is_last).to_bytes(3, "little") + block
    return frame


def _lies() -> Iterator[bytes]:
    body = b"".join(
        encode_record(replace(change(n), offset=n), 0, 1_700_000_000_000) for n in range(30)
    )
    yield lying(30, 30, says=2_000_000)
    yield lying(30, 30, says=31)
    for size in (1, (1 << 62), len(body) + 1):
        yield lying(30, 30, says=30, content=_zstd_that_says(size, body))


@pytest.mark.parametrize("lie", list(_lies()), ids=["crowd", "one_more", "less", "huge", "more"])
def test_a_batch_that_lies_about_its_size_stops_nothing_but_itself(
    settings: MaterializeSettings, lie: bytes
) -> None:
    made = LakeCluster(settings.path)
    made.create_topic("orders", 1)
    good = [replace(change(n), offset=n) for n in range(30)]
    end = 30 + max(int.from_bytes(lie[23:27], "big") + 1, 30)
    after = [replace(change(n), offset=end + n) for n in range(30)]
    made.write({("orders", 0): [encode_batch(good), lie, encode_batch(after, codec="zstd")]})
    result = materialize(replace(settings, on_error="dead_letter", merge_bytes=20_000))
    table = opened(settings)
    topic_id = store_reader(settings.path).open_catalog().topic("orders").topic_id
    assert table.last_offset(topic_id, 0) == end + 29
    assert result.dead_letters == 1


def test_rows_that_wait_for_the_files_of_many_tables_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table of a fan-out would hold as many as a table alone."""
    root = tmp_path / "cluster"
    names = [f"t{n}" for n in range(8)]
    values = {0: [b'{"day": %d, "n": %d, "text": "%0200d"}' % (n % 3, n, n) for n in range(20_000)]}
    write_topic(root, "orders", values, batch_records=1000, codec="zstd")
    configs = {f"{PREFIX}enable": "true", TABLES: ",".join(names)}
    for name in names:
        configs |= {
            f"{PREFIX}{name}.value.format": "json",
            f"{PREFIX}{name}.schema": "day int, n bigint, text string",
            f"{PREFIX}{name}.partition.by": "day",
        }
    configure(root, "orders", configs)
    reader = store_reader(str(root))
    catalog = reader.open_catalog()
    most: list[int] = []
    take = table_item._SharedWork._take_gathered

    def watched(self: Any) -> None:
        take(self)
        most.append(self._held_bytes())

    monkeypatch.setattr(table_item._SharedWork, "_take_gathered", watched)
    file_bytes = 1 << 20
    runs = [
        TableRun(
            replace(declared_settings(one, str(root), workers=1), file_bytes=file_bytes),
            reader,
            Unguarded(),
        )
        for one in TableDeclaration.each_of(catalog.topic("orders"))
    ]
    for run in runs:
        assert run.begin(catalog)
    for run in runs:
        run.catch_up(catalog, beside=[one for one in runs if one is not run])
    assert file_bytes < max(most) <= 2 * file_bytes
    for name in names:
        rows = DeltaTable(root / "tables" / name).to_pyarrow_table(columns=["n"])
        assert sorted(rows.column("n").to_pylist()) == list(range(20_000))


def test_rows_that_end_others_copy_no_values(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source of a MERGE with history has each value once."""
    write(settings, {0: 300})
    sizes: list[tuple[int, int]] = []
    plan = table_run.planned_merge

    def watched(table: Table, changes: Any, *given: Any, **more: Any) -> Any:
        merge = plan(table, changes, *given, **more)
        sizes.append((changes.nbytes, merge.source.nbytes))
        return merge

    monkeypatch.setattr(table_run, "planned_merge", watched)
    materialize(replace(settings, scd=2))
    assert len(sizes) > 1
    assert all(source < 1.2 * changes for changes, source in sizes)


def event(number: int, text: str) -> TestRecord:
    row = {"id": number % 100, "n": number, "text": text}
    source = {"ts_ms": 1_700_000_000_000 + number}
    value = {"before": None, "after": row, "op": "u", "ts_ms": source["ts_ms"], "source": source}
    return TestRecord(offset=0, key=b"%d" % (number % 100), value=json.dumps(value).encode())


def test_values_that_changes_leave_out_count_for_a_commit(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MERGE has them in memory, though the changes are small."""
    changed = replace(
        settings, value_format="debezium", schema=None, keys=("id",), merge_bytes=400_000
    )
    root = Path(settings.path)
    texts = [Random(n).randbytes(10_000).hex() for n in range(100)]
    first = [event(n, texts[n]) for n in range(100)]
    write_topic(root, "orders", {0: first}, batch_records=BATCH, codec="zstd")
    materialize(changed)
    more = [event(n, PLACEHOLDER) for n in range(100, 500)]
    write_topic(root, "orders", {0: more}, batch_records=BATCH, codec="zstd")
    inflate_little(monkeypatch, 3_000)
    monkeypatch.setattr(table_item, "_GATHERED_BYTES", 1)
    sizes: list[int] = []
    plan = table_run.planned_merge

    def watched(*given: Any, **named: Any) -> Any:
        merge = plan(*given, **named)
        sizes.append(merge.source.nbytes)
        return merge

    monkeypatch.setattr(table_run, "planned_merge", watched)
    materialize(changed)
    assert max(sizes) <= 1.5 * changed.merge_bytes
    rows = DeltaTable(settings.table).to_pyarrow_table(columns=["id", "n", "text"]).to_pylist()
    assert {row["id"]: (row["n"], row["text"]) for row in rows} == {
        n: (400 + n, texts[n]) for n in range(100)
    }
