"""Places of records in eight bytes each, compared with a set of pairs; and letters of a round that
an earlier try has committed in part, found by them.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.jobs.dead_letters import commit_dead_letters
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.tables.data_file import DataFile, DataFileWriter
from lakehead.lake.tables.delta_table import create_table, open_table
from lakehead.lake.tables.layout import DEAD_LETTERS
from lakehead.lake.tables.record_places import RecordPlaces, among_places

Place = tuple[int, int]
PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9) | st.just((1 << 62) + 1)))


def rows(places: list[Place]) -> Any:
    columns = zip(*places, strict=True) if places else ((), ())
    types = zip(columns, (pa.int32(), pa.int64()), strict=True)
    arrays = [pa.array(column, kind) for column, kind in types]
    half = len(places) // 2
    whole = pa.Table.from_arrays(arrays, names=["_partition", "_offset"])
    return pa.concat_tables([whole.slice(0, half), whole.slice(half)])


@given(PLACES, PLACES)
def test_places_are_those_of_a_set_of_pairs(held: list[Place], wanted: list[Place]) -> None:
    places = RecordPlaces(rows(held))
    assert len(places) == len(set(held))
    assert places.has(rows(wanted)).tolist() == [place in set(held) for place in wanted]


@given(PLACES, PLACES.filter(bool))
def test_no_row_of_the_places_is_passed_over(held: list[Place], wanted: list[Place]) -> None:
    found = ds.dataset(rows(held)).to_table(filter=among_places(rows(wanted)))
    told = Counter(zip(*found.to_pydict().values(), strict=True))
    assert not Counter(place for place in held if place in set(wanted)) - told
    assert {offset for _, offset in told} <= {offset for _, offset in wanted}


def letters_file(root: str, groups: list[list[Place]]) -> DataFile:
    writer = DataFileWriter(root, DEAD_LETTERS)
    for places in groups:
        columns = [
            pa.array([partition for partition, _ in places], field.type)
            if field.name == "_partition"
            else pa.array([offset for _, offset in places], field.type)
            if field.name == "_offset"
            else pa.nulls(len(places), field.type)
            for field in DEAD_LETTERS
        ]
        writer.add(pa.Table.from_arrays(columns, schema=DEAD_LETTERS))
    return writer.finish()


def test_letters_that_an_earlier_try_has_committed_are_not_added_again(tmp_path: Path) -> None:
    settings = MaterializeSettings(path="", topic="orders", table=str(tmp_path / "orders"))
    uri = settings.dead_letters
    table = create_table(settings.table, DEAD_LETTERS, name="orders", description="")

    def commit(*files: list[list[Place]]) -> int:
        made = [letters_file(uri, groups) for groups in files]
        return commit_dead_letters(settings, made, {}, table, topic_id="t", may_be_there=True)

    assert commit([[(0, 1), (0, 2)], [(1, 1)]]) == 3
    assert commit([[(0, 1), (0, 2)], [(1, 1)]]) == 0
    assert commit([[(0, 2), (0, 3)], [(1, 1)], [(1, 2)]], [[(2, 1)]], [[(0, 1)]]) == 3
    letters = open_table(uri)
    assert letters is not None
    held = zip(*(letters.rows(["_partition", "_offset"], None).to_pydict().values()), strict=True)
    assert sorted(held) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)]
