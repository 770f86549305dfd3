"""`lakehead sql`: Spark SQL over a cluster's topics, read from the object store."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri


class RowFormat(StrEnum):
    """The format of printed rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Mode(StrEnum):
    """The handling of a batch that cannot be read, and of a time beyond its column."""

    FAILFAST = "failfast"
    DROPMALFORMED = "dropmalformed"
    PERMISSIVE = "permissive"


class Undecodable(StrEnum):
    """The handling of a value that cannot be decoded."""

    FAIL = "fail"
    NULL = "null"


S3Option = Annotated[
    bool | None,
    typer.Option(
        "--s3/--no-s3",
        help="Read Delta tables in S3 too: SELECT * FROM delta.`s3://BUCKET/TABLE`. Fetches "
        "Spark's jars for S3 once (690 MB). [default: where -e names one, or a topic has its "
        "table there and they were fetched before]",
        show_default=False,
    ),
]


def sql(
    path: PathOption = DEFAULT_PATH,
    execute: Annotated[
        str | None,
        typer.Option(
            "--execute", "-e", metavar="SQL", help="Run these statements and end; no shell."
        ),
    ] = None,
    json: Annotated[
        list[str] | None,
        typer.Option(
            "--json-values",
            "-j",
            metavar="TOPIC[=DDL]",
            help="Values of this topic are JSON, whatever it declares: their fields are columns, "
            "inferred or given ('id bigint, name string'). May be repeated.",
        ),
    ] = None,
    undecodable: Annotated[
        Undecodable,
        typer.Option(
            "--undecodable",
            metavar="fail|null",
            help="A value that is not what its topic declares: name it and stop, or give NULL and "
            "say why in _error.",
        ),
    ] = Undecodable.FAIL,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            metavar="failfast|dropmalformed|permissive",
            case_sensitive=False,
            help="A batch that no reader can read, or a time that no TIMESTAMP holds: name it and "
            "stop, leave it out, or give NULL.",
        ),
    ] = Mode.FAILFAST,
    output: Annotated[
        RowFormat,
        typer.Option("--format", metavar="table|csv|json", help="Format of printed rows."),
    ] = RowFormat.TABLE,
    delta: Annotated[
        bool,
        typer.Option(
            "--delta/--no-delta",
            help="Read Delta tables too: SELECT * FROM delta.`PATH`. Fetches Delta's jars once.",
        ),
    ] = True,
    s3: S3Option = None,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing",
            help="After each statement, say on standard error where its time went: Spark's start, "
            "views, parsing, analysis, optimization, planning, execution; at the end Spark's stop.",
        ),
    ] = False,
) -> None:
    """Open a Spark SQL shell in which every topic is a view.

    Values are columns as their topics declare (lakehead.table.value.format). lakehead.topics,
    .partitions, .objects, .groups, .nodes and .tables are tables about the cluster.

    Needs no broker: topics are read in place, from the object store. Without -e, statements come
    from the terminal or from a pipe, each ended by a semicolon.
    """
    from lakehead.lake.decode.modes import checked_mode
    from lakehead.lake.sql.shell import run_sql

    status = run_sql(
        store_uri(path),
        execute=execute,
        json_topics=tuple(json or ()),
        undecodable=undecodable.value,
        mode=checked_mode(mode.value),
        output=output.value,
        delta=delta,
        s3=s3,
        timing=timing,
    )
    sys.exit(status)
