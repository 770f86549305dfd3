"""The `lakehead` command as a whole, and what a failure looks like.

A user's mistake, a missing file or a refused connection is one line on standard error and exit
status 1. A traceback is a defect of Lakehead.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.cli.commands import LazyGroup
from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.open_files import raise_open_file_limit
from lakehead.installation import VERSION
from lakehead.storage.errors import LakeheadError

app = CommandLine(
    name="lakehead",
    cls=LazyGroup,
    add_completion=True,
    help="A Kafka broker whose data lies in an object store, where Spark reads it in place.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lakehead {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit."""
    raise_open_file_limit()
    try:
        app(prog_name="lakehead")
    except LakeheadError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        from lakehead.broker.cli.extras import missing_extra

        missing = missing_extra(error)
        if missing is None:
            raise
        _fail(str(missing))
    except BrokenPipeError:
        # The reader of the output has gone (`| head`): nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except OSError as error:
        _fail(_operating_error(error))


def _operating_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError) and not error.filename and not _is_in_a_folder():
        return "the current folder was deleted: change to one that exists"
    return f"{error.filename}: {reason}" if error.filename else reason


def _is_in_a_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _fail(reason: str) -> None:
    typer.echo(f"lakehead: {' '.join(reason.split())}", err=True)
    sys.exit(1)
