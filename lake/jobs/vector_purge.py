"""Purge of deletion vectors: files are rewritten without their deleted rows, and no row changes.

Until then a deleted row costs each reader its bytes. Compaction rewrites only files that it joins,
so a large file with deleted rows is rewritten here.
"""

from collections.abc import Sequence

from lakehead.lake.jobs.table_compaction import rewritten
from lakehead.lake.tables.delta_table import Table
from lakehead.lake.tables.table_file import TableFile
from lakehead.lake.tables.vector_merge import add_action
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint


def files_to_purge(table: Table, percent: int) -> list[TableFile]:
    """Return the files of which at least `percent` of the rows are deleted; with a table that takes
    vectors no more, all that have some. Raises TableUnavailable.
    """
    if not table.has_vectors:
        return []
    least = percent if table.takes_vectors else 0
    return [
        file
        for file in table.data_files()
        if file.file is not None
        and file.file.vector is not None
        and file.file.vector.rows * 100 >= least * file.file.row_count()
    ]


def purge(table: Table, files: Sequence[TableFile], *, file_bytes: int) -> None:
    """Rewrite files of a table without their deleted rows, in one commit. A file of a cube stays
    one. Raises CommitConflict if another run has changed one of the files since the table was
    opened, TableUnavailable, and what reading and writing files raises.
    """
    table.require_rewritable()
    replaced, added, modified_ms = [], [], SystemClock().now_ms()
    for file in files:
        assert file.file is not None, "it has a vector"
        replaced.append(file.file)
        tags = {"tags": dict(file.file.tags)} if file.file.tags else {}
        added += [
            add_action(one, modified_ms, is_data_change=False, **tags)
            for one in rewritten(table, [file], file_bytes=file_bytes)
        ]
    failpoint("optimize_files_purged")
    table.commit_rewrite(replaced, added, modified_ms=modified_ms, commit_info={})
