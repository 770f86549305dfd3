"""Dead letters become rows when they can, each record once, also when a run is killed between."""

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.replay import ReplayResult
from lakehead.lake.jobs.table_schema import SchemaConflict
from lakehead.storage.failpoints import KILLED
from tests.support.declared_topics import configure
from tests.support.template_process import killed_job
from tests.support.topic_writer import Value, write_topic

BAD = {3: b"{", 7: b'{"id": "text"}', 8: b'{"id": 1099511627776}'}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    cluster = tmp_path / "cluster"
    values: list[Value] = [BAD.get(n, json.dumps({"id": n}).encode()) for n in range(10)]
    write_topic(cluster, "orders", {0: values, 1: values}, partitions=2)
    declare(cluster, "id int")
    materialize(cluster)
    return cluster


def declare(cluster: Path, schema: str, path: str = "") -> None:
    configs = {
        "enable": "true",
        "value.format": "json",
        "schema": schema,
        "on.error": "dead_letter",
        "path": path,
    }
    configure(cluster, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def materialize(cluster: Path) -> None:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(cluster))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    assert [outcome.error for outcome in outcomes] == [None]


def replay(cluster: Path, *, dry_run: bool = False) -> ReplayResult:
    tables = DeclaredTables(str(cluster))
    try:
        return tables.replay("orders", dry_run=dry_run)
    finally:
        tables.close()


def places(table: Path) -> Counter[tuple[int, int]]:
    held = DeltaTable(table).to_pyarrow_table(columns=["_partition", "_offset"]).to_pydict()
    return Counter(zip(held["_partition"], held["_offset"], strict=True))


def both(cluster: Path) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    return places(cluster / "tables/orders"), places(cluster / "tables/orders__dlq")


EVERYTHING = Counter((p, n) for p in (0, 1) for n in range(10))
LETTERS = Counter((p, n) for p in (0, 1) for n in BAD)


def test_what_cannot_be_rows_stays(cluster: Path) -> None:
    assert both(cluster) == (EVERYTHING - LETTERS, LETTERS)
    result = replay(cluster)
    assert (result.letters, result.replayed, result.left) == (6, 0, 6)
    assert "offset 3" in result.first_left
    assert both(cluster) == (EVERYTHING - LETTERS, LETTERS)


def test_letters_become_rows_when_the_schema_is_put_right(cluster: Path) -> None:
    """A number that was too large for the column fits once the column is wider."""
    held = both(cluster)[0]
    DeltaTable(cluster / "tables/orders").delete("_offset = 5")  # somebody's wish, kept
    declare(cluster, "id bigint")
    dry = replay(cluster, dry_run=True)
    assert both(cluster)[1] == LETTERS
    assert (dry.letters, dry.replayed) == (6, 2)
    result = replay(cluster)
    fits = Counter([(0, 8), (1, 8)])
    assert (result.replayed, result.left) == (2, 4)
    gone = Counter([(0, 5), (1, 5)])
    assert both(cluster) == (held - gone + fits, LETTERS - fits)
    assert replay(cluster).replayed == 0


@pytest.mark.parametrize(
    "name", ["table_commit_prepared", "replay_rows_committed", "replay_letters_committed"]
)
def test_killed_anywhere_each_record_is_in_one_of_the_tables(cluster: Path, name: str) -> None:
    held = both(cluster)[0]
    declare(cluster, "id bigint")
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_replay_dead_letters import replay; "
        "replay(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(cluster), failpoint=name) == KILLED
    replay(cluster)
    fits = Counter([(0, 8), (1, 8)])
    assert both(cluster) == (held + fits, LETTERS - fits)


def test_a_replay_that_is_killed_between_rounds_goes_on(cluster: Path) -> None:
    """Rounds of one letter: what one has committed is in the table, and is not made again."""
    held = both(cluster)[0]
    declare(cluster, "id bigint")
    script = (
        "import sys; from pathlib import Path; import lakehead.lake.jobs.replay as job; "
        "from tests.integration.test_replay_dead_letters import replay; "
        "job._LETTERS_AT_ONCE = job._ROUND_BYTES = 1; replay(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(cluster), failpoint="replay_rows_committed") == KILLED
    rows, letters = both(cluster)
    assert letters == LETTERS
    assert (rows - held).total() == 1
    result = replay(cluster)
    assert (result.letters, result.replayed, result.already_rows, result.left) == (6, 1, 1, 4)
    fits = Counter([(0, 8), (1, 8)])
    assert both(cluster) == (held + fits, LETTERS - fits)


def run_that_is_killed_before_its_rows(cluster: Path) -> None:
    """Commit the dead letters of a round, and not its rows."""
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_replay_dead_letters import materialize; "
        "materialize(Path(sys.argv[1]))"
    )
    failpoint = "materialize_dead_letters_committed"
    assert killed_job(script, str(cluster), failpoint=failpoint) == KILLED


def test_letters_of_a_run_that_was_killed_become_no_rows_before_it_is_done_again(
    cluster: Path,
) -> None:
    """That run reads their records itself: with a replay between, each would be there twice."""
    write_topic(cluster, "orders", {0: [BAD[8], b'{"id": 11}']})
    run_that_is_killed_before_its_rows(cluster)
    declare(cluster, "id bigint")
    result = replay(cluster)
    assert (result.letters, result.replayed, result.left) == (7, 2, 5)
    materialize(cluster)
    result = replay(cluster)
    assert (result.already_rows, result.left) == (1, 4)
    fits = Counter([(0, 8), (1, 8)])
    more = Counter([(0, 10), (0, 11)])
    assert both(cluster) == (EVERYTHING - LETTERS + fits + more, LETTERS - fits)


def test_letters_of_a_backfill_that_was_killed_become_no_rows_before_it_is_done_again(
    tmp_path: Path,
) -> None:
    cluster = tmp_path / "later"
    write_topic(cluster, "orders", {0: [BAD[8], b'{"id": 1}', b'{"id": 2}']})
    declare(cluster, "id int")
    begin(cluster, 2)
    materialize(cluster)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_replay_dead_letters import begin; "
        "begin(Path(sys.argv[1]), 0)"
    )
    failpoint = "materialize_dead_letters_committed"
    assert killed_job(script, str(cluster), failpoint=failpoint) == KILLED
    declare(cluster, "id bigint")
    assert "does not have its offset yet" in replay(cluster).first_left
    begin(cluster, 0)
    assert replay(cluster).already_rows == 1
    assert both(cluster) == (Counter((0, n) for n in range(3)), Counter())


def begin(cluster: Path, offset: int) -> None:
    tables = DeclaredTables(str(cluster))
    tables.begin("orders", at={0: offset})
    tables.close()


def test_letters_are_read_by_the_schema_that_is_declared_now(cluster: Path) -> None:
    """A new column and a wider one count at once, without a materialize between; a dry run tells
    the same and leaves table and letters as they are.
    """
    table = cluster / "tables/orders"
    before = DeltaTable(table).version(), DeltaTable(table).schema()
    declare(cluster, "id bigint, note string")
    dry = replay(cluster, dry_run=True)
    assert (DeltaTable(table).version(), DeltaTable(table).schema()) == before
    result = replay(cluster)
    assert dry == result
    assert (result.replayed, result.left) == (2, 4)
    fits = Counter([(0, 8), (1, 8)])
    assert both(cluster) == (EVERYTHING - LETTERS + fits, LETTERS - fits)
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "note"]).to_pylist()
    assert rows.count({"id": 1099511627776, "note": None}) == 2
    materialize(cluster)
    assert both(cluster) == (EVERYTHING - LETTERS + fits, LETTERS - fits)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_declared_type_that_the_table_cannot_become_leaves_its_letters(
    cluster: Path, dry_run: bool
) -> None:
    declare(cluster, "id string, note string")
    result = replay(cluster, dry_run=dry_run)
    assert (result.replayed, result.left) == (0, 6)
    assert both(cluster) == (EVERYTHING - LETTERS, LETTERS)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_table_that_pauses_for_new_columns_says_so_when_letters_are_replayed(
    cluster: Path, dry_run: bool
) -> None:
    declare(cluster, "id bigint")
    configure(cluster, "orders", {f"{PREFIX}evolution": "pause"})
    with pytest.raises(SchemaConflict, match="id from INT to BIGINT wider"):
        replay(cluster, dry_run=dry_run)
    assert both(cluster) == (EVERYTHING - LETTERS, LETTERS)
