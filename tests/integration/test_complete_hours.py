"""Hours that are complete in a table: by records beyond them, by lateness, by idle partitions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.complete_hours import (
    HOUR_MS,
    HourIncomplete,
    HoursOfTable,
    Lateness,
    hour_key,
    hour_start,
)
from lakehead.storage.errors import SettingsError
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

BEGIN = hour_start("2026-11-27T00")
MINUTE = 60_000
LONG_AFTER = BEGIN + 100 * HOUR_MS


class Orders:
    """A topic of two partitions with a table. Times are minutes after the beginning."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.place = folder / "tables" / "orders"
        self.write({0: [0]})
        declared = {"enable": "true", "value.format": "json"}
        configure(folder, "orders", {f"{PREFIX}{name}": text for name, text in declared.items()})

    def write(self, minutes: Mapping[int, Sequence[int]]) -> None:
        records = {
            partition: [
                TestRecord(
                    offset=0,
                    timestamp=BEGIN + minute * MINUTE,
                    value=json.dumps({"minute": minute}).encode(),
                )
                for minute in some
            ]
            for partition, some in minutes.items()
        }
        write_topic(self.root, "orders", records, partitions=2, batch_records=2)

    def materialize(self) -> None:
        materialize_all(self.root)

    def hours(
        self, *, late: int = 0, idle: int | None = None, now_ms: int = LONG_AFTER
    ) -> HoursOfTable:
        lateness = Lateness(
            lateness_ms=late * MINUTE, idle_ms=None if idle is None else idle * MINUTE
        )
        reader = store_reader(str(self.root))
        return HoursOfTable(reader, "orders", str(self.place), lateness, now_ms=now_ms)

    def keys(
        self, *, late: int = 0, idle: int | None = None, now_ms: int = LONG_AFTER
    ) -> list[str]:
        found = self.hours(late=late, idle=idle, now_ms=now_ms).complete(BEGIN)
        return [hour.key.removeprefix("2026-11-27T") for hour in found]


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def test_an_hour_is_complete_once_each_partition_has_a_record_beyond_it(orders: Orders) -> None:
    orders.write({0: [30, 70], 1: [20]})
    orders.materialize()
    assert orders.keys() == []
    orders.write({1: [61]})
    orders.materialize()
    assert orders.keys() == ["00"]
    orders.write({0: [185], 1: [200]})
    orders.materialize()
    assert orders.keys() == ["00", "01", "02"]


def test_records_that_the_table_lacks_keep_an_hour_open(orders: Orders) -> None:
    orders.write({0: [10], 1: [10]})
    orders.materialize()
    orders.write({0: [70], 1: [70]})
    assert orders.keys() == []
    assert orders.keys(idle=1) == [], "a partition with more in objects is not idle"
    orders.materialize()
    assert orders.keys() == ["00"]


def test_a_record_within_the_lateness_is_in_its_hour(orders: Orders) -> None:
    orders.write({0: [70, 50], 1: [70]})
    orders.materialize()
    assert orders.keys() == ["00"]
    assert orders.keys(late=15) == [], "more may come until the 75th minute"
    orders.write({0: [58, 76], 1: [75]})
    orders.materialize()
    (hour,) = orders.hours(late=15).complete(BEGIN)
    rows = DeltaTable(orders.place, version=hour.version).to_pyarrow_table().to_pylist()
    in_hour = {(row["_partition"], row["_offset"]) for row in rows if hour_start_of(row) == BEGIN}
    in_range = {
        (row["_partition"], row["_offset"])
        for row in rows
        if row["_partition"] in hour.offsets
        and hour.offsets[row["_partition"]][0]
        <= row["_offset"]
        < hour.offsets[row["_partition"]][1]
    }
    assert len(in_hour) == 3
    assert in_hour <= in_range


def hour_start_of(row: Mapping[str, object]) -> int:
    stamp = row["_timestamp"]
    assert hasattr(stamp, "timestamp")
    return int(stamp.timestamp() * 1000) // HOUR_MS * HOUR_MS


def test_an_idle_partition_does_not_hold_hours_up(orders: Orders) -> None:
    orders.write({0: [70]})
    orders.materialize()
    assert orders.keys() == [], "partition 1 never had a record"
    at = BEGIN + 65 * MINUTE
    assert orders.keys(idle=10, now_ms=at) == []
    assert orders.keys(idle=10, now_ms=at + 5 * MINUTE) == ["00"]
    assert orders.keys(late=10, idle=10, now_ms=at + 5 * MINUTE) == []


def test_an_hour_without_records_is_complete_and_empty(orders: Orders) -> None:
    orders.write({0: [130], 1: [130]})
    orders.materialize()
    first, second = orders.hours().complete(BEGIN)
    assert first.offsets == {0: (0, 1)}
    assert second.offsets == {}


def test_a_look_goes_on_where_the_last_one_ended(orders: Orders) -> None:
    orders.write({0: [60 * 30], 1: [60 * 30]})
    orders.materialize()
    found = orders.hours().complete(BEGIN, most=20)
    assert len(found) == 20
    more = orders.hours().complete(found[-1].start_ms + HOUR_MS)
    assert [hour.key for hour in (*found, *more)] == [
        hour_key(BEGIN + n * HOUR_MS) for n in range(30)
    ]


def test_an_hour_by_name_is_there_or_is_incomplete(orders: Orders) -> None:
    orders.write({0: [70], 1: [70]})
    orders.materialize()
    assert orders.hours().hour("2026-11-27T00").start_ms == BEGIN
    with pytest.raises(HourIncomplete, match="2026-11-27T01"):
        orders.hours().hour("2026-11-27T01")
    with pytest.raises(SettingsError, match="not an hour"):
        orders.hours().hour("yesterday")


def test_a_topic_without_a_table_has_no_hours(orders: Orders) -> None:
    with pytest.raises(SettingsError, match="no table of topic orders"):
        orders.hours()
