"""Confirmation before a command deletes what cannot be had again."""

import sys
from typing import Annotated

import typer

from lakehead.storage.errors import SettingsError

YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do it without a confirmation: for scripts.")
]


def confirm(question: str, *, yes: bool) -> None:
    """Return when a user confirms at the terminal, or has given --yes.

    Raises SettingsError when the user declines, and where standard input is not a terminal;
    KeyboardInterrupt by Ctrl-C or the end of input.
    """
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise SettingsError(f"{question} There is no terminal to confirm at: give --yes")
    try:
        is_confirmed = typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)
        raise KeyboardInterrupt from None
    if not is_confirmed:
        raise SettingsError("not confirmed: nothing was changed")
