"""Tables by upsert against a dict: puts, deletes, keys that change, any number of partitions and
rounds, a round offered again, and every value kept (scd=2).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.merge_engine import DeltaMerge
from lakehead.lake.tables.upsert import HISTORY_FIELDS, change_schema

TOPIC = "0" * 32
MOMENT = pa.timestamp("us", tz="UTC")
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("part of", pa.string()),
        pa.field("v", pa.int64()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", MOMENT),
        pa.field("_key", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Change:
    """A record: `op` u, d (names its columns), v (a null value: names its record key), or t."""

    op: str
    key: int
    value: int


def changes_strategy(ops: str) -> st.SearchStrategy[list[list[Change]]]:
    change = st.builds(
        Change, op=st.sampled_from(ops), key=st.integers(0, 5), value=st.integers(0, 99)
    )
    return st.lists(st.lists(change, max_size=12), min_size=1, max_size=4)


class Log:
    """Gives changes their offsets, and the model the state after each."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.ends = [0] * partitions
        self.clock = 0
        self.model: dict[int, int] = {}
        self.history: list[list[int | None]] = []  # key, value, from, to

    def rows(self, changes: Sequence[Change]) -> list[dict[str, Any]]:
        return [self._row(change) for change in changes]

    def _row(self, change: Change) -> dict[str, Any]:
        partition = change.key % self.partitions if change.op != "t" else 0
        offset, self.ends[partition] = self.ends[partition], self.ends[partition] + 1
        self.clock += 1
        self._apply(change)
        is_void = change.op == "v"
        return {
            "id": None if is_void or change.op == "t" else change.key,
            "part of": None if is_void or change.op == "t" else f"p{change.key}",
            "v": change.value if change.op == "u" else None,
            "_partition": partition,
            "_offset": offset,
            "_timestamp": self.clock,
            "_key": b"%d" % change.key,
            "_op": "d" if is_void else change.op,
            "_seq": 0,
            "_at": self.clock,
        }

    def _apply(self, change: Change) -> None:
        ended = [row for row in self.history if row[3] is None]
        for row in ended:
            if change.op == "t" or row[0] == change.key:
                row[3] = self.clock
        if change.op == "t":
            self.model.clear()
        elif change.op == "u":
            self.model[change.key] = change.value
            self.history.append([change.key, change.value, self.clock, None])
        else:
            self.model.pop(change.key, None)


def merged(
    table: Table,
    rows: list[dict[str, Any]],
    ends: Sequence[int],
    keys: tuple[str, ...],
    schema: Any,
    *,
    is_history: bool = False,
) -> None:
    changes = pa.Table.from_pylist(rows, schema=change_schema(schema))
    merge = planned_merge(table, changes, schema, keys, is_history=is_history)
    progress = {(TOPIC, partition): end - 1 for partition, end in enumerate(ends)}
    DeltaMerge().merge(table, merge, progress, {})


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


@settings(max_examples=25, deadline=None)
@given(
    rounds=changes_strategy("uuudvt"),
    partitions=st.integers(1, 3),
    keys=st.sampled_from([(), ("id",), ("part of", "id")]),
    again=st.booleans(),
    has_vectors=st.booleans(),
)
def test_a_table_is_what_a_dict_would_be(
    rounds: list[list[Change]],
    partitions: int,
    keys: tuple[str, ...],
    again: bool,
    has_vectors: bool,
) -> None:
    log = Log(partitions)
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        table = create_table(uri, ROW, name="t", description="")
        if has_vectors:
            table.set_vectors(is_enabled=True, modified_ms=1)
        for changes in rounds:
            rows = log.rows(changes)
            for _ in range(2 if again else 1):
                merged(opened(uri), rows, log.ends, keys, ROW)
            found = opened(uri).rows(["id", "v"], None).to_pydict()
            assert sorted(zip(found["id"], found["v"], strict=True)) == sorted(log.model.items())
            by_delta_rs = QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT v FROM t")
            values = pa.table(by_delta_rs).column("v").to_pylist()
            assert sorted(values) == sorted(log.model.values())
            for partition, end in enumerate(log.ends):
                assert opened(uri).last_offset(TOPIC, partition) == end - 1


@settings(max_examples=15, deadline=None)
@given(rounds=changes_strategy("uuudvt"), keys=st.sampled_from([(), ("id",)]))
def test_history_has_every_value_and_when_it_held(
    rounds: list[list[Change]], keys: tuple[str, ...]
) -> None:
    log = Log(1)
    schema = pa.schema([*ROW, *HISTORY_FIELDS])
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        create_table(uri, schema, name="t", description="")
        for changes in rounds:
            merged(opened(uri), log.rows(changes), log.ends, keys, schema, is_history=True)
        names = ["id", "v", "_valid_from", "_valid_to", "_is_current"]
        held = DeltaTable(uri).to_pyarrow_table(columns=names)
    rows = [
        [row["id"], row["v"], micros(row["_valid_from"]), micros(row["_valid_to"])]
        for row in held.to_pylist()
    ]
    assert sorted(map(str, rows)) == sorted(map(str, log.history))
    assert [row["_is_current"] for row in held.to_pylist()] == [row[3] is None for row in rows]


def micros(moment: Any) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1e6)


@settings(max_examples=10, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12
    ),  # key, partition
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=5),
)
def test_history_has_one_current_row_of_a_key_whatever_partition_a_round_reads_first(
    records: list[tuple[int, int]], order: list[tuple[int, int]]
) -> None:
    """A key is in several partitions once a topic got more of them."""
    waiting: list[list[dict[str, Any]]] = [[], [], []]
    for at, (key, partition) in enumerate(records, start=1):
        moment = {"_timestamp": at, "_at": at}
        row = {"id": key, "v": at, "_op": "u", "_seq": 0, "_key": b"%d" % key, **moment}
        place = {"_partition": partition, "_offset": len(waiting[partition])}
        waiting[partition].append(row | place)
    schema = pa.schema([*ROW, *HISTORY_FIELDS])
    ends = [0] * 3
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        create_table(uri, schema, name="t", description="")
        for partition, count in [*order, (0, 12), (1, 12), (2, 12)]:
            first = ends[partition]
            rows = waiting[partition][first : first + count]
            ends[partition] += len(rows)
            merged(opened(uri), rows, ends, ("id",), schema, is_history=True)
        held = DeltaTable(uri).to_pyarrow_table(columns=["id", "v", "_valid_to", "_is_current"])
    found = held.to_pylist()
    assert sorted(row["v"] for row in found) == list(range(1, len(records) + 1))
    newest = {key: at for at, (key, _) in enumerate(records, start=1)}
    assert {row["id"]: row["v"] for row in found if row["_is_current"]} == newest
    assert all(row["_is_current"] == (row["_valid_to"] is None) for row in found)


@settings(max_examples=15, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.sampled_from("uuuut"), st.integers(0, 3), st.integers(0, 2)), max_size=12
    ),  # op, key, partition of a truncate
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=4),
    is_history=st.booleans(),
)
def test_a_truncate_ends_the_rows_before_it_whatever_partition_a_round_reads_first(
    records: list[tuple[str, int, int]], order: list[tuple[int, int]], is_history: bool
) -> None:
    """The truncates of a topic are in any of its partitions, and rows after them come first."""
    waiting: list[list[dict[str, Any]]] = [[], [], []]
    model: dict[int, int] = {}
    for at, (op, key, anywhere) in enumerate(records, start=1):
        partition = anywhere if op == "t" else key % 3
        row = {"_op": op, "_seq": 0, "_timestamp": at, "_at": at, "_partition": partition}
        if op == "u":
            row |= {"id": key, "v": at, "_key": b"%d" % key}
            model[key] = at
        else:
            model.clear()
        waiting[partition].append(row | {"_offset": len(waiting[partition])})
    schema = pa.schema([*ROW, *(HISTORY_FIELDS if is_history else ())])
    ends = [0] * 3
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        create_table(uri, schema, name="t", description="")
        for partition, count in [*order, (2, 12), (1, 12), (0, 12)]:
            first = ends[partition]
            rows = waiting[partition][first : first + count]
            ends[partition] += len(rows)
            merged(opened(uri), rows, ends, ("id",), schema, is_history=is_history)
        found = DeltaTable(uri).to_pyarrow_table().to_pylist()
    held = {(row["id"], row["v"]) for row in found if row.get("_is_current", True)}
    # Beside them are rows that came after the truncate which had ended them, as after a delete.
    assert model.items() <= held


def test_a_row_of_the_moment_of_a_truncate_in_another_partition_stays(tmp_path: Path) -> None:
    """TRUNCATE and INSERT of one transaction have one time at the source, and often as records."""
    uri = str(tmp_path / "t")
    create_table(uri, ROW, name="t", description="")
    moment = {"_seq": 0, "_timestamp": 5, "_at": 5, "_offset": 0}
    put = {"_op": "u", "id": 1, "v": 1, "_key": b"1", "_partition": 1}
    merged(opened(uri), [moment | {"_op": "t", "_partition": 0}, moment | put], [1, 1], (), ROW)
    assert opened(uri).rows(["v"], None).column("v").to_pylist() == [1]
    later = {"_timestamp": 6, "_at": 6, "_offset": 1}
    merged(opened(uri), [moment | later | {"_op": "t", "_partition": 0}], [2, 1], (), ROW)
    assert opened(uri).rows(["v"], None).num_rows == 0
