"""The table of records that could not be rows: `<table>__dlq`.

Letters are committed before the rows of their round. A run that was killed between the two commits
has left letters there, and the next run adds only those that are missing.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.tables.data_file import DataFile, read_row_groups
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.layout import DEAD_LETTERS
from lakehead.lake.tables.merge_engine import progress_txns
from lakehead.lake.tables.owner import check_topic, owner_txn
from lakehead.lake.tables.record_places import PLACE, RecordPlaces, among_places
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint

DEAD_LETTERS_DESCRIPTION = "Records that could not be read"


def dead_letter_table_name(topic: str) -> str:
    """Return the name that a topic's table of dead letters is created with."""
    return f"{topic}__dlq"


def check_dead_letter_table(letters: Table, topic: str) -> None:
    """Raise SettingsError for a table that is not of a topic's dead letters."""
    if letters.name != dead_letter_table_name(topic):
        raise SettingsError(
            f"{letters.uri} is the place of dead letters of topic {topic}, and holds another table "
            f"({letters.name!r}): move that away, or name another place (lakehead.table.path)"
        )


def commit_dead_letters(
    settings: MaterializeSettings,
    files: Sequence[DataFile],
    progress: Mapping[tuple[str, int], int],
    table: Table,
    *,
    topic_id: str,
    may_be_there: bool = False,
) -> int:
    """Commit a round's dead letters to their table, unless an earlier try has done so, and return
    the number of added ones. `table` is the table of rows before its commit: dead letters ahead of
    it are from an earlier try. Set `may_be_there` where progress cannot show that.

    Raises OtherTopic, SettingsError for a table that does not hold this topic's dead letters,
    CommitConflict, TableUnavailable.
    """
    if not files:
        return 0
    uri, topic = settings.dead_letters, settings.topic
    # Opened after the table of rows: so what was committed between two looks is seen as ahead.
    letters = open_table(uri)
    if letters is None:
        letters = create_table(
            uri,
            DEAD_LETTERS,
            name=dead_letter_table_name(topic),
            description=DEAD_LETTERS_DESCRIPTION,
            txns=owner_txn(topic_id),
        )
    check_dead_letter_table(letters, topic)
    check_topic(letters, topic, topic_id)
    is_ahead = any(letters.last_offset(*key) > table.last_offset(*key) for key in progress)
    if is_ahead or may_be_there:
        files = _missing_dead_letters(uri, letters, files)
        if not files:
            return 0
    reached = {key: max(last, letters.last_offset(*key)) for key, last in progress.items()}
    offsets = ", ".join(f"{partition}: {last}" for (_, partition), last in sorted(progress.items()))
    letters.commit(
        files,
        {**progress_txns(reached), **owner_txn(topic_id)},
        modified_ms=SystemClock().now_ms(),
        commit_info={"lakehead.topic": topic, "lakehead.last.offsets": offsets},
    )
    failpoint("materialize_dead_letters_committed")
    return sum(file.record_count for file in files)


def _missing_dead_letters(uri: str, letters: Table, files: Sequence[DataFile]) -> list[DataFile]:
    """The dead letters of `files` that the table does not hold yet, in new files or none."""
    each = [places for file in files for places in read_row_groups(uri, file.path, PLACE)]
    held = RecordPlaces(letters.rows(PLACE, among_places(pa.concat_tables(each))))
    missing = TableFiles(uri, ())
    for file in files:
        for rows in read_row_groups(uri, file.path):
            missing.add(rows.filter(pa.array(~held.has(rows))).cast(DEAD_LETTERS))
    return list(missing.finish())
