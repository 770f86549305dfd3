"""Tables that another program deletes or replaces while a run works on them."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs import table_run
from lakehead.lake.jobs.declared_tables import TableOutcome
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_item import SharedItem, TableItemResult, make_shared_files
from lakehead.lake.jobs.table_rebuild import rebuild_table
from lakehead.lake.jobs.table_run import TableRun
from lakehead.lake.jobs.table_settings import MaterializeSettings, Unguarded
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import CommitConflict, Table, TableUnavailable
from tests.support.declared_tables import followed
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until


@pytest.fixture
def settings(tmp_path: Path) -> MaterializeSettings:
    return MaterializeSettings(
        path=str(tmp_path / "cluster"), topic="orders", table=str(tmp_path / "table"), workers=1
    )


def write(settings: MaterializeSettings, topic: str = "orders") -> None:
    values = [json.dumps({"id": number}).encode() for number in range(10)]
    write_topic(Path(settings.path), topic, {0: values})


def offsets(table: str) -> Counter[int]:
    held = DeltaTable(table).to_pyarrow_table(columns=["_offset"])
    return Counter(held.column("_offset").to_pylist())


@pytest.mark.parametrize("moment", ["work", "conflict"])
def test_a_table_that_is_deleted_during_a_run_ends_it_and_the_next_makes_it_again(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    write(settings)
    materialize(settings)
    write(settings)
    deleted: list[str] = []

    def delete() -> None:
        if not deleted:
            deleted.append(moment)
            shutil.rmtree(settings.table)

    make, commit = make_shared_files, Table.commit

    def interrupted(item: SharedItem) -> tuple[TableItemResult | None, ...]:
        made = make(item)
        if moment == "work":
            delete()
        return made

    def overtaken(table: Table, *given: object, **named: object) -> None:
        delete()
        raise CommitConflict("another run has committed")

    monkeypatch.setattr(table_run, "make_shared_files", interrupted)
    if moment == "conflict":
        monkeypatch.setattr(Table, "commit", overtaken)
    with pytest.raises(TableUnavailable):
        materialize(settings)
    assert deleted
    monkeypatch.setattr(Table, "commit", commit)
    assert materialize(settings).records == 20
    assert offsets(settings.table) == Counter(range(20))


def test_files_of_a_round_that_lost_to_a_rebuild_are_not_in_the_rebuilt_table(
    settings: MaterializeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the columns of the table as it was before."""
    write(settings)
    materialize(settings)
    reader = store_reader(settings.path)
    before = reader.open_catalog()
    write(settings)
    make, rebuilt = make_shared_files, list[int]()

    def interrupted(item: SharedItem) -> tuple[TableItemResult | None, ...]:
        made = make(item)
        if not rebuilt:
            rebuilt.append(1)
            wider = replace(settings, schema="id double")
            rebuild_table(wider, reader, before, Unguarded())
        return made

    monkeypatch.setattr(table_run, "make_shared_files", interrupted)
    run = TableRun(settings, reader, Unguarded())
    run.catch_up(reader.open_catalog())
    assert rebuilt
    assert offsets(settings.table) == Counter(range(20))
    files = [pq.read_schema(place) for place in DeltaTable(settings.table).file_uris()]
    assert {str(schema.field("id").type) for schema in files} == {"double"}


@pytest.fixture
def following(settings: MaterializeSettings) -> Iterator[list[TableOutcome]]:
    """The outcomes of a thread that follows the declared tables of two topics."""
    for topic in ("kept", "orders"):
        write(settings, topic)
        configs = {"enable": "true", "value.format": "json", "freshness.ms": "1000"}
        named = {f"{PREFIX}{name}": text for name, text in configs.items()}
        configure(Path(settings.path), topic, named)
    with followed(Path(settings.path)) as outcomes:
        yield outcomes


def test_a_followed_table_that_is_deleted_is_made_again_and_ends_no_other(
    settings: MaterializeSettings, following: list[TableOutcome]
) -> None:
    place, other = (f"{settings.path}/tables/{topic}" for topic in ("orders", "kept"))

    def has(table: str, count: int) -> bool:
        try:
            return offsets(table) == Counter(range(count))
        except (DeltaError, OSError):
            return False

    assert wait_until(lambda: has(place, 10) and has(other, 10), 60)
    shutil.rmtree(place)
    write(settings)
    write(settings, "kept")
    assert wait_until(lambda: has(place, 20) and has(other, 20), 60)
    assert {one.topic for one in following if one.error is not None} == {"orders"}
