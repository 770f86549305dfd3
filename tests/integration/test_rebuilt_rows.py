"""Nothing is rebuilt away: rows that nothing else holds, and tables of others."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from lakehead.broker.cli.app import app
from lakehead.lake.jobs.table_rebuild import HistoryOnlyInTable
from lakehead.lake.tables.delta_table import create_table
from lakehead.lake.tables.layout import DEAD_LETTERS
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import KILLED
from tests.integration.test_topic_made_again import TOPIC, catch_up, names, rebuild, write
from tests.support.declared_topics import configure, delete_topic, trim
from tests.support.template_process import killed_job


def rebuild_killed_at(root: Path, failpoint: str) -> None:
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_topic_made_again import rebuild; "
        "rebuild(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(root), failpoint=failpoint) == KILLED


def test_a_topic_that_names_the_table_of_another_does_not_replace_it(tmp_path: Path) -> None:
    write(tmp_path, "append", ["a0", "a1"], bad=1)
    catch_up(tmp_path)
    write(tmp_path, "append", ["b0"], topic="other")
    configure(tmp_path, "other", {"lakehead.table.path": str(tmp_path / "tables" / TOPIC)})
    for options in ({}, {"without_history": True}, {"dry_run": True}):
        with pytest.raises(SettingsError, match="overlaps the table of topic people"):
            rebuild(tmp_path, "other", **options)
    assert names(tmp_path) == ["a0", "a1"]
    delete_topic(tmp_path, TOPIC)  # now its table is declared by no topic
    with pytest.raises(SettingsError, match="is the table of topic 'people', not of 'other'"):
        rebuild(tmp_path, "other", without_history=True)
    assert names(tmp_path) == ["a0", "a1"]
    configure(tmp_path, "other", {"lakehead.table.path": str(tmp_path / "tables/people__dlq")})
    with pytest.raises(SettingsError, match="is the table of topic 'people__dlq'"):
        rebuild(tmp_path, "other", without_history=True)
    configure(tmp_path, "other", {"lakehead.table.path": str(tmp_path / "tables/plain")})
    create_table(str(tmp_path / "tables/plain"), DEAD_LETTERS, name="a user's", description="")
    with pytest.raises(SettingsError, match='is the table of topic "a user\'s"'):
        rebuild(tmp_path, "other", without_history=True)


@pytest.mark.parametrize("place", ["people__rebuild", "people__rebuild__dlq", "people__dlq"])
def test_what_lies_where_a_rebuild_works_is_not_deleted(tmp_path: Path, place: str) -> None:
    """The folders that a rebuild makes and removes may be those of another table."""
    uri = str(tmp_path / "tables" / place)
    create_table(uri, DEAD_LETTERS, name="a user's", description="")
    (tmp_path / "tables" / place / "part-0.parquet").write_bytes(b"its rows")
    write(tmp_path, "append", ["a0", "a1"])
    catch_up(tmp_path)
    with pytest.raises(SettingsError, match=r"another table|in the way|is the table of topic"):
        rebuild(tmp_path, without_history=True)
    assert names(tmp_path) == ["a0", "a1"]
    assert DeltaTable(uri).metadata().name == "a user's"
    assert (tmp_path / "tables" / place / "part-0.parquet").read_bytes() == b"its rows"


def test_files_that_are_no_table_stay_where_a_rebuild_works(tmp_path: Path) -> None:
    write(tmp_path, "append", ["a0"])
    catch_up(tmp_path)
    kept = tmp_path / "tables/people__rebuild__dlq/notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    rebuild(tmp_path)
    assert kept.read_text() == "mine"


def test_dead_letters_that_nothing_else_holds_count_as_rows_do(tmp_path: Path) -> None:
    write(tmp_path, "append", [], bad=3)
    write(tmp_path, "append", ["a", "b"])
    catch_up(tmp_path)
    trim(tmp_path, TOPIC, 0, 2)
    with pytest.raises(HistoryOnlyInTable, match="2 rows of"):
        rebuild(tmp_path)
    letters = tmp_path / "tables/people__dlq"
    assert DeltaTable(letters).to_pyarrow_dataset().count_rows() == 3
    assert rebuild(tmp_path, without_history=True).rows_left_out == 2
    assert DeltaTable(letters).to_pyarrow_dataset().count_rows() == 1


def test_rows_of_partitions_that_the_topic_does_not_have_count(tmp_path: Path) -> None:
    write(tmp_path, "append", ["a", "b"])
    catch_up(tmp_path)
    place = tmp_path / "tables" / TOPIC
    rows = DeltaTable(place).to_pyarrow_table()
    beyond = [row | {"_partition": 7} for row in rows.to_pylist()]
    write_deltalake(place, pa.Table.from_pylist(beyond, schema=rows.schema), mode="append")
    with pytest.raises(HistoryOnlyInTable, match="2 rows of"):
        rebuild(tmp_path)
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize("mode", ["append", "history"])
def test_rows_of_records_that_were_compacted_away_count(tmp_path: Path, mode: str) -> None:
    write(tmp_path, mode, [f"v{n}" for n in range(12)])
    catch_up(tmp_path)
    before = names(tmp_path)
    configure(tmp_path, TOPIC, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    done = CliRunner().invoke(app, ["compact-topics", TOPIC, "--path", str(tmp_path)])
    assert done.exit_code == 0, done.output
    with pytest.raises(HistoryOnlyInTable, match="9 rows of"):
        rebuild(tmp_path)
    assert names(tmp_path) == before
    assert rebuild(tmp_path, without_history=True).rows_left_out == 9
    assert names(tmp_path) == ["v10", "v11", "v9"]


def test_records_that_go_after_they_were_read_are_not_lost(tmp_path: Path) -> None:
    """The count right before the swap is of what the new table has, not of what the topic has."""
    write(tmp_path, "append", ["a", "b", "c"])
    catch_up(tmp_path)
    rebuild_killed_at(tmp_path, "rebuild_made_beside")
    trim(tmp_path, TOPIC, 0, 2)
    with pytest.raises(HistoryOnlyInTable):  # the first look, before anything is read
        rebuild(tmp_path)
    assert rebuild(tmp_path, without_history=True).rows_left_out == 0
    assert names(tmp_path) == ["a", "b", "c"]


def test_records_that_go_before_they_were_read_leave_no_gap_in_a_rebuilt_table(
    tmp_path: Path,
) -> None:
    write(tmp_path, "append", ["a", "b"])
    catch_up(tmp_path)
    rebuild_killed_at(tmp_path, "rebuild_made_beside")
    write(tmp_path, "append", ["c", "d", "e"])
    catch_up(tmp_path)
    trim(tmp_path, TOPIC, 0, 4)
    assert rebuild(tmp_path, without_history=True).rows_left_out == 4
    assert names(tmp_path) == ["e"], "begun again, as one without a gap"
    assert catch_up(tmp_path).lag.records == 0


def test_what_a_rebuild_of_a_deleted_topic_left_is_not_continued(tmp_path: Path) -> None:
    write(tmp_path, "append", ["old0", "old1"])
    catch_up(tmp_path)
    rebuild_killed_at(tmp_path, "rebuild_made_beside")
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "append", ["new0"])
    assert rebuild(tmp_path, without_history=True).rows_left_out == 2
    assert names(tmp_path) == ["new0"]


def test_a_topic_without_records_leaves_the_table_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, "append", ["old"])
    catch_up(tmp_path)
    delete_topic(tmp_path, TOPIC)
    write(tmp_path, "append", [])
    configure(tmp_path, TOPIC, {"lakehead.table.schema": None})
    with pytest.raises(SettingsError, match="is left as it is"):
        rebuild(tmp_path, without_history=True)
    assert names(tmp_path) == ["old"]
