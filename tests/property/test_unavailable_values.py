"""Columns that a change leaves as they are, against a dict: several changes of a key in a round, in
any number of rounds and partitions, deletes and truncates between them, rounds offered again, and
tables that keep every value.
"""

import base64
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.merge_engine import DeltaMerge
from lakehead.lake.tables.unavailable_values import KEPT, PLACEHOLDER, unavailable
from lakehead.lake.tables.upsert import HISTORY_FIELDS, change_schema

TOPIC = "0" * 32
COLUMNS = ("text", "parts")
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("parts", pa.list_(pa.int64())),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Change:
    """A record: `op` u, d or t; `kept` are the columns that it leaves as they are."""

    op: str
    key: int
    value: int
    kept: frozenset[str]


CHANGE = st.builds(
    Change,
    op=st.sampled_from("uuuuudt"),
    key=st.integers(0, 3),
    value=st.integers(0, 99),
    kept=st.sets(st.sampled_from(COLUMNS)).map(frozenset),
)
ROUNDS = st.lists(st.lists(CHANGE, max_size=10), min_size=1, max_size=4)


class Log:
    """Gives changes their offsets, and the model the state after each."""

    def __init__(self, partitions: int) -> None:
        self.ends = [0] * partitions
        self.clock = 0
        self.model: dict[int, dict[str, Any]] = {}
        self.versions: list[tuple[int, Any, Any]] = []

    def row(self, change: Change) -> dict[str, Any]:
        """Return a change as its row, and apply it to the model."""
        partition = change.key % len(self.ends) if change.op != "t" else 0
        offset, self.ends[partition] = self.ends[partition], self.ends[partition] + 1
        self.clock += 1
        values = {"text": f"text {change.value}", "parts": [change.value]}
        if change.op == "u":
            before = self.model.get(change.key, {})
            self.model[change.key] = {
                name: before.get(name) if name in change.kept else value
                for name, value in values.items()
            }
            held = self.model[change.key]
            self.versions.append((change.key, held["text"], held["parts"]))
        elif change.op == "d":
            self.model.pop(change.key, None)
        else:
            self.model.clear()
        is_put = change.op == "u"
        return {
            "id": None if change.op == "t" else change.key,
            **{
                name: value if is_put and name not in change.kept else None
                for name, value in values.items()
            },
            "_partition": partition,
            "_offset": offset,
            "_timestamp": self.clock,
            "_key": b"%d" % change.key,
            "_op": change.op,
            "_seq": 0,
            "_at": self.clock,
            KEPT: sorted(change.kept) if is_put and change.kept else None,
        }


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


def merge(
    uri: str, rows: Sequence[dict[str, Any]], log: Log, schema: Any, *, is_history: bool
) -> None:
    table = opened(uri)
    changes = pa.Table.from_pylist(list(rows), schema=change_schema(schema))
    made = planned_merge(table, changes, schema, ("id",), is_history=is_history)
    progress = {(TOPIC, partition): end - 1 for partition, end in enumerate(log.ends)}
    DeltaMerge().merge(table, made, progress, {})


@settings(max_examples=25, deadline=None)
@given(rounds=ROUNDS, partitions=st.integers(1, 2), again=st.booleans())
def test_a_column_that_a_change_lacks_keeps_its_last_known_value(
    rounds: list[list[Change]], partitions: int, again: bool
) -> None:
    log = Log(partitions)
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        create_table(uri, ROW, name="t", description="")
        for changes in rounds:
            rows = [log.row(change) for change in changes]
            for _ in range(2 if again else 1):
                merge(uri, rows, log, ROW, is_history=False)
            found = opened(uri).rows(["id", *COLUMNS], None).to_pylist()
            assert {one.pop("id"): one for one in found} == log.model


@settings(max_examples=15, deadline=None)
@given(rounds=ROUNDS)
def test_each_version_of_a_row_has_the_columns_of_the_one_before(
    rounds: list[list[Change]],
) -> None:
    log = Log(1)
    schema = pa.schema([*ROW, *HISTORY_FIELDS])
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        create_table(uri, schema, name="t", description="")
        for changes in rounds:
            rows = [log.row(change) for change in changes]
            merge(uri, rows, log, schema, is_history=True)
        found = opened(uri).rows(["id", *COLUMNS, "_is_current"], None).to_pylist()
    versions = [(one["id"], one["text"], one["parts"]) for one in found]
    assert sorted(map(repr, versions)) == sorted(map(repr, log.versions))
    current = {one["id"]: one["text"] for one in found if one["_is_current"]}
    assert current == {key: row["text"] for key, row in log.model.items()}


TEXT = PLACEHOLDER.encode()


@pytest.mark.parametrize(
    ("kind", "placeholder", "others"),
    [
        (pa.string(), PLACEHOLDER, ["", PLACEHOLDER + "s", "x"]),
        (pa.string(), base64.b64encode(TEXT).decode(), ["X19k"]),
        (pa.string(), TEXT.hex(), ["5f5f"]),
        (pa.string(), f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', ["{}"]),
        (pa.binary(), TEXT, [b"", TEXT[1:]]),
        (pa.list_(pa.string()), [PLACEHOLDER], [[], [PLACEHOLDER, PLACEHOLDER], ["a"], [None]]),
        (pa.list_(pa.binary()), [TEXT], [[], [b"a"], [None]]),
        (
            pa.list_(pa.string()),
            [str(uuid.UUID(bytes=md5(TEXT, usedforsecurity=False).digest(), version=3))],
            [[str(uuid.UUID(int=0))]],
        ),
        (pa.list_(pa.int32()), list(TEXT), [[], [95], [95, *TEXT[1:-1], 0], [None] * len(TEXT)]),
        (pa.list_(pa.int64()), list(TEXT), [[], [*TEXT, 0]]),
        (pa.map_(pa.string(), pa.string()), [(PLACEHOLDER, PLACEHOLDER)], [[], [("a", "b")]]),
    ],
)
def test_placeholders_are_known_in_the_form_of_each_type(
    kind: Any, placeholder: Any, others: list[Any]
) -> None:
    column = pa.array([*others, placeholder, None], kind)
    mask = unavailable(column)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [len(others)]
    assert unavailable(pa.chunked_array([column.slice(len(others)), column]))[0]  # type: ignore[index]
    assert unavailable(pa.array([*others, None], kind)) is None
