"""`lakehead tables`: how the tables are that topics declare."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.storage.clock import SystemClock
from lakehead.storage.plain_text import moment

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_status import TableStatus

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="These alone. Without any: every declared table."),
]

_COLUMNS = {
    "topic": "TOPIC",
    "name": "TABLE",
    "records_behind": "BEHIND",
    "bytes_behind": "BYTES BEHIND",
    "seconds_behind": "SECONDS",
    "last_commit": "LAST COMMIT",
    "files": "FILES",
    "bytes": "BYTES",
    "small_file_ratio": "SMALL",
    "dead_letters": "DEAD LETTERS",
    "dropped": "DROPPED",
    "left_out": "LEFT OUT",
    "dollars": "LAST RUNS",
    "error": "PROBLEM",
}


def list_tables(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    as_json: JsonOption = False,
) -> None:
    """Show how far each table is behind, and its problem.

    Also its files, dead letters and what it costs.

    Needs no broker. BEHIND counts what lies in objects and not in the table; SMALL is the share of
    files below a quarter of lakehead.table.file.bytes; DROPPED counts records that on.error=drop
    left out, LEFT OUT rows whose values have fields that the table has no column for; LAST RUNS the
    bytes read, seconds and price of the newest 20 commits that brought records. PROBLEM is why a
    table cannot be read, why its last turn failed or pauses, or why it is late: behind by twice its
    freshness.
    """
    from lakehead.lake.jobs.table_due import chosen_tables
    from lakehead.lake.jobs.table_status import table_statuses
    from lakehead.lake.store_reader import store_reader

    catalog = store_reader(store_uri(path)).open_catalog()
    chosen_tables(catalog, topics or ())
    statuses = table_statuses(catalog, SystemClock().now_ms(), topics=topics or ())
    rows = [_plain(status) if as_json else _shown(status) for status in statuses]
    columns = _COLUMNS if rows else {"": "no topic declares a table"}
    show_rows(rows, columns, as_json)


def _plain(status: "TableStatus") -> dict[str, Any]:
    from lakehead.lake.cluster_tables import status_row

    row = status_row(status)
    last = row["last_commit"]
    at = None if last is None else datetime.fromtimestamp(last / 1e6, UTC).isoformat()
    return row | {"last_commit": at}


def _shown(status: "TableStatus") -> dict[str, Any]:
    row = _plain(status)
    ratio, runs = status.small_file_ratio, status.runs
    return row | {
        "seconds_behind": f"{status.seconds_behind:.0f}",
        "last_commit": moment(-1 if status.last_commit_ms is None else status.last_commit_ms),
        "small_file_ratio": None if ratio is None else f"{ratio:.0%}",
        "error": status.error or status.late,
        "dollars": f"{status.bytes_read} B, {status.seconds:.1f} s, ${status.dollars:.6f}"
        if runs
        else None,
    }
