"""Help texts of commands, flags and settings: plain, and begun with what the reader looks for."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from lakehead.broker.cli.app import app
from lakehead.broker.setting_sources import SETTINGS

OPENING = re.compile(r"^(What|Who|Whoever|Which|Whether|How|Where)\b")
WORDS = re.compile(
    r"\b(anew|is told|are told|told|whoever|somebody|nobody|everybody|so many|who)\b", re.IGNORECASE
)


def commands(command: Any, path: str) -> Iterator[tuple[str, str]]:
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}")


def texts() -> list[tuple[str, str]]:
    of_commands = dict(commands(typer.main.get_command(app), "lakehead"))
    of_settings = {setting.name: setting.doc for setting in SETTINGS}
    return [*of_commands.items(), *of_settings.items()]


@pytest.mark.parametrize(("place", "text"), texts(), ids=[place for place, _ in texts()])
def test_a_help_text_is_plain(place: str, text: str) -> None:
    assert not OPENING.match(text), f"{place}: begin with a verb or the thing itself"
    assert not WORDS.search(text), f"{place}: name the role; requests, responses, reports"
