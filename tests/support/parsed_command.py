"""Commands of texts, parsed by the real command line and not run."""

import itertools
import shlex
from typing import Any

import typer

from lakehead.broker.cli.app import app


def shell_words(text: str) -> list[str]:
    """Return the words of the first command of a line, as a POSIX shell takes it: up to a pipe, a
    redirection or a comment.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: word[0] not in "|<>&;", lexer))


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a command, like `topics create`, and its parameters by name.

    Raises what the command line raises of wrong usage: an unknown option, a missing argument.
    """
    program, *words = shell_words(text)
    assert program == "lakehead", text
    command: Any = typer.main.get_command(app)
    context = command.make_context("lakehead", words, resilient_parsing=True)
    path = []
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, words)
        path.append(name)
        is_group = hasattr(command, "commands")
        context = command.make_context(name, words, parent=context, resilient_parsing=is_group)
    return " ".join(path), context.params
