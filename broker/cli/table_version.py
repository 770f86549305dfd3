"""`lakehead table-version`: the version of a table as of a position in its topic."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_version import AsOfPosition


def show_version(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="A topic that declares a table; TOPIC/TABLE where it declares several.",
        ),
    ],
    as_of: Annotated[
        str,
        typer.Argument(
            metavar="AS_OF",
            help="A time (ISO 8601), an offset for each partition (0:1200,1:3400) or what a group "
            "has committed (group:NAME).",
        ),
    ],
    path: PathOption = DEFAULT_PATH,
    as_json: JsonOption = False,
) -> None:
    """Show the version of a table as of a time or position.

    A position is offsets, or what a group has committed.

    It is the oldest one that holds all records up to the time, or below the offsets. If it holds
    more, a condition leaves the others out, since commits end with rounds of the table. A table by
    upsert has no such condition, since a row of before is gone.
    """
    from lakehead.lake.jobs.table_version import table_version

    found = table_version(store_uri(path), topic, _position(as_of))
    fields = {
        "table": found.table,
        "version": found.version,
        "requested": dict(found.requested),
        "offsets": dict(found.offsets),
        "exact": found.is_exact,
        "condition": found.condition,
    }
    if not as_json:
        where = "" if found.condition is None else f" WHERE {found.condition}"
        query = f"SELECT * FROM delta.`{found.table}` VERSION AS OF {found.version}{where}"  # noqa: S608
        shown = ("requested", "offsets")
        fields |= {name: json.dumps(fields[name]) for name in shown}
        fields |= {"exact": "yes" if found.is_exact else "no", "query": query}
    show_fields(fields, as_json)


def _position(text: str) -> "AsOfPosition":
    from lakehead.lake.jobs.table_jobs import beginning
    from lakehead.lake.positions import GroupPosition

    if (of_group := GroupPosition.parse(text)) is not None:
        return of_group
    try:
        found = beginning(text)
    except ValueError:
        found = None
    if found is None:
        raise SettingsError(
            f"AS_OF is a time (2026-11-27T12:00), offsets (0:1200,1:3400) or group:NAME, not {text}"
        )
    return found
