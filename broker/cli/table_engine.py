"""The option that says which Delta engine rewrites a table's files."""

from enum import StrEnum
from typing import Annotated

import typer


class Engine(StrEnum):
    """Who does it."""

    DELTA_RS = "delta-rs"
    SPARK = "spark"


EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine", metavar="delta-rs|spark", help="delta-rs, without a JVM; or delta-spark."
    ),
]
MergeEngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        metavar="delta-rs|spark",
        help="Engine of the MERGE of tables by upsert: delta-rs, without a JVM; or delta-spark.",
    ),
]
