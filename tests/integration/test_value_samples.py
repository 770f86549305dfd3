"""Samples of values, from which columns are inferred, are bounded in bytes too."""

from pathlib import Path

import pytest

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables import value_sample
from lakehead.lake.tables.value_sample import sample_records
from tests.support.topic_writer import write_topic

VALUE_BYTES = 10_000


@pytest.mark.parametrize(("both_ends", "most"), [(False, 200_000), (True, 400_000)])
def test_of_large_records_there_are_fewer_and_some_of_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both_ends: bool, most: int
) -> None:
    monkeypatch.setattr(value_sample, "SAMPLE_BYTES", 200_000)
    values = {partition: [b"x" * VALUE_BYTES] * 200 for partition in (0, 1, 2)}
    write_topic(tmp_path, "large", values, partitions=3)
    reader = store_reader(str(tmp_path))
    logs = reader.open_catalog().partitions("large")
    sample = sample_records(reader, logs, 60, both_ends=both_ends)
    assert most / 2 < sample.nbytes <= most
    assert set(sample.column("partition").to_pylist()) == {0, 1, 2}
    assert (max(sample.column("offset").to_pylist()) >= 180) == both_ends


def test_of_small_records_there_are_as_many_as_wanted(tmp_path: Path) -> None:
    write_topic(tmp_path, "small", {0: [b"x"] * 50, 1: [b"y"] * 5}, partitions=2)
    reader = store_reader(str(tmp_path))
    logs = reader.open_catalog().partitions("small")
    assert sample_records(reader, logs, 20).num_rows == 15


def test_a_record_that_is_too_large_is_a_sample_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_sample, "SAMPLE_BYTES", 100)
    write_topic(tmp_path, "large", {0: [b"x" * VALUE_BYTES] * 2, 1: [b"y"] * 2}, partitions=2)
    reader = store_reader(str(tmp_path))
    logs = reader.open_catalog().partitions("large")
    assert sample_records(reader, logs, 10).num_rows == 1
