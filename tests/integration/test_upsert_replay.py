"""Dead letters of a table by upsert, replayed: the table is as if there had been none."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehead.lake.jobs import replay as replay_job
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.replay import DeadLetterKeys, ReplayResult
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import KILLED
from tests.integration.test_upsert_tables import catch_up, declare, event, record, row
from tests.support.declared_topics import trim
from tests.support.template_process import killed_job
from tests.support.topic_writer import Value, write_topic

KEYS = 20
Model = dict[int, int]


def write(root: Path, seed: int, model: Model, *, start: int = 0, count: int = 60) -> set[int]:
    """Puts, deletes, and puts whose number is too large for an int; returns the keys of these."""
    chance = random.Random(seed)
    values: dict[int, list[Value]] = {0: [], 1: []}
    letters = set()
    for number in range(start, start + count):
        key = chance.randrange(KEYS)
        kind = chance.choice(("put", "delete", "letter", "letter"))
        value = None
        if kind == "delete":
            model.pop(key, None)
        else:
            model[key] = number + (1 << 40 if kind == "letter" else 0)
            value = b'{"id": %d, "n": %d}' % (key, model[key])
        if kind == "letter":
            letters.add(key)
        values[key % 2].append(record(b"%d" % key, value, number))
    write_topic(root, "people", values, partitions=2, batch_records=7)
    return letters


def declared(root: Path, schema: str, *, keys: str = "", **more: str) -> None:
    declare(
        root,
        "people",
        value_format="json",
        schema=schema,
        keys=keys,
        on_error="dead_letter",
        **more,
    )


def replay(root: Path, *, dry_run: bool = False) -> ReplayResult:
    tables = DeclaredTables(str(root))
    try:
        return tables.replay("people", dry_run=dry_run)
    finally:
        tables.close()


def held(table: str) -> Model:
    found = DeltaTable(table).to_pyarrow_table(columns=["id", "n"]).to_pydict()
    assert len(set(found["id"])) == len(found["id"]), "a row for each key"
    return dict(zip(found["id"], found["n"], strict=True))


def letters_left(table: str) -> int:
    return int(DeltaTable(f"{table}__dlq").to_pyarrow_dataset().count_rows())


@pytest.mark.parametrize(("seed", "keys"), [(1, ""), (2, "id"), (3, "id")])
def test_the_newest_of_each_key_wins_be_it_a_letter_or_not(
    tmp_path: Path, seed: int, keys: str
) -> None:
    root, model = tmp_path / "store", Model()
    write(root, seed, model)
    declared(root, "id bigint, n int", keys=keys)
    table = catch_up(root, "people").table
    write(root, seed + 10, model, start=60)
    catch_up(root, "people")
    assert held(table) != model
    count = letters_left(table)
    declared(root, "id bigint, n bigint", keys=keys)
    told = replay(root, dry_run=True)
    assert (told.letters, told.left) == (count, 0)
    assert 0 < told.replayed < count == told.replayed + told.already_rows
    assert letters_left(table) == count
    assert replay(root) == told
    assert held(table) == model
    assert letters_left(table) == 0
    write(root, seed + 20, model, start=120)
    catch_up(root, "people")
    assert held(table) == model


def test_a_run_that_is_killed_between_its_commits_is_taken_up(tmp_path: Path) -> None:
    root, model = tmp_path / "store", Model()
    write(root, 1, model)
    declared(root, "id bigint, n int")
    table = catch_up(root, "people").table
    declared(root, "id bigint, n bigint")
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_upsert_replay import replay; replay(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(root), failpoint="replay_rows_committed") == KILLED
    assert held(table) == model
    assert letters_left(table) > 0
    replay(root)
    assert held(table) == model
    assert letters_left(table) == 0


def test_a_round_is_bounded_by_the_values_of_its_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by their keys alone: the values are in memory when they are merged."""
    monkeypatch.setattr(replay_job, "_LETTERS_AT_ONCE", 4)
    monkeypatch.setattr(replay_job, "_ROUND_BYTES", 100_000)
    root, rounds, widened = tmp_path / "store", 3, 1
    values = [b'{"id": %d, "n": %d, "text": "%s"}' % (n, 1 << 40, b"x" * 20_000) for n in range(24)]
    write_topic(root, "people", {0: [record(b"%d" % n, v) for n, v in enumerate(values)]})
    declared(root, "id bigint, n int, text string", keys="id")
    table = catch_up(root, "people").table
    declared(root, "id bigint, n bigint, text string", keys="id")
    before = DeltaTable(table).version()
    result = replay(root)
    assert (result.letters, result.replayed, result.left) == (24, 24, 0)
    assert DeltaTable(table).version() - before == rounds + widened
    assert held(table) == dict.fromkeys(range(24), 1 << 40)


def test_keys_of_letters_are_looked_for_among_many_records_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for a million keys costs as much for ten records as for a million."""
    looks: list[int] = []
    chosen = DeadLetterKeys.chosen

    def counted(wanted: DeadLetterKeys, changes: Any, keys: Sequence[str]) -> Any:
        looks.append(changes.num_rows)
        return chosen(wanted, changes, keys)

    monkeypatch.setattr(DeadLetterKeys, "chosen", counted)
    root, model = tmp_path / "store", Model()
    for start in range(0, 400, 40):
        write(root, start, model, start=start, count=40)
    declared(root, "id bigint, n int")
    table = catch_up(root, "people").table
    declared(root, "id bigint, n bigint")
    replay(root)
    assert held(table) == model
    assert sum(looks) > 300
    assert len(looks) <= 2


def test_a_letter_whose_record_is_gone_stays(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bad = [record(b"%d" % key, b'{"id": %d, "n": %d}' % (key, 1 << 40)) for key in range(4)]
    gone = record(b"0", None)
    write_topic(root, "people", {0: [*bad, gone]})
    declared(root, "id bigint, n int")
    table = catch_up(root, "people").table
    trim(root, "people", 0, 2)
    declared(root, "id bigint, n bigint")
    result = replay(root)
    assert (result.letters, result.replayed, result.left) == (4, 2, 2)
    assert "partition 0, offset 0: its record is not in the topic any more" in result.first_left
    assert held(table) == {2: 1 << 40, 3: 1 << 40}
    assert letters_left(table) == 2


def test_change_events_that_were_letters(tmp_path: Path) -> None:
    root, big = tmp_path / "store", 1 << 40
    events = [
        event("c", None, row(1, "a") | {"n": 1}),
        event("u", row(1, "a") | {"n": 1}, row(2, "a") | {"n": big}),  # the key changes
        event("c", None, row(3, "c") | {"n": big}),  # deleted after it
        event("d", row(3, "c") | {"n": 3}, None),
        event("c", None, row(4, "d") | {"n": big}),  # emptied after it
        record(b"{}", b'{"before": null, "after": null, "op": "t", "source": {}}', 6),
        event("c", None, row(5, "e") | {"n": 5}),
        event("u", row(5, "e") | {"n": 5}, row(6, "e") | {"n": big}),
    ]
    write_topic(root, "people", {0: events})
    schema = "id bigint, name string, n int"
    more = {"value_format": "debezium", "keys": "id", "on_error": "dead_letter"}
    declare(root, "people", schema=schema, **more)
    outcome = catch_up(root, "people")
    assert outcome.error is None
    assert held(outcome.table) == {5: 5}
    rows = DeltaTable(outcome.table).to_pyarrow_table()
    wider = rows.set_column(2, "n", rows["n"].cast(pa.int64()))
    write_deltalake(outcome.table, wider, mode="overwrite", schema_mode="overwrite")
    declare(root, "people", schema=schema.replace("n int", "n bigint"), **more)
    result = replay(root)
    assert (result.letters, result.replayed, result.left) == (4, 1, 0)
    assert held(outcome.table) == {6: big}


def test_history_takes_no_letters(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write(root, 5, Model())
    declared(root, "id bigint, n int", scd="2")
    table = catch_up(root, "people").table
    with pytest.raises(SettingsError, match=r"scd=2.*rebuild-table"):
        replay(root)
    assert letters_left(table) > 0
