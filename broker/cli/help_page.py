"""The pages of `--help`: options with their full names, by subject, and values by their meaning.

Typer's own pages put options into columns of a box, which cut off long names and show types of
Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_ARGUMENTS, _OPTIONS, _COMMANDS = "Arguments", "Options", "Commands"
_NAMES_WIDTH = 26
"""Columns of names; the text of a longer one begins on a line of its own."""


class CommandLine(typer.Typer):
    """A group of commands, with pages of this module."""

    def __init__(self, **attributes: Any) -> None:
        given: dict[str, Any] = {
            "cls": HelpGroup,
            "no_args_is_help": True,
            "add_completion": False,
        } | attributes
        super().__init__(
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
            **given,
        )

    def command(self, name: str | None = None, **attributes: Any) -> Callable[..., Any]:
        """Return what makes a function a command of this group."""
        given: dict[str, Any] = {"cls": HelpCommand} | attributes
        return super().command(name, **given)


class HelpCommand(TyperCommand):
    """A command with a page of this module."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, by subject."""
        write_parameters(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        write_examples(ctx.command_path.partition(" ")[2], formatter)


class HelpGroup(TyperGroup):
    """A group of commands with a page of this module."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, and then the commands."""
        write_parameters(self.get_params(ctx), ctx, formatter)
        write_commands(self.summaries(ctx), formatter)

    def summaries(self, ctx: Any) -> Mapping[str, Mapping[str, str]]:
        """Return a line of help for each command, by subject."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {_COMMANDS: {name: summary(one.help or "") for name, one in commands.items() if one}}


def summary(text: str) -> str:
    """Return the first paragraph of a help text, in one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def write_commands(commands: Mapping[str, Mapping[str, str]], formatter: Any) -> None:
    """Write a line of help for each command, by subject."""
    width = max((len(name) for group in commands.values() for name in group), default=0)
    for title, group in commands.items():
        rows = [(name.ljust(width), text) for name, text in group.items()]
        with formatter.section(title):
            formatter.write_dl(rows)


def write_examples(command: str, formatter: Any) -> None:
    """Write the examples of a command, each below its purpose: whole, as it is to be copied."""
    from lakehead.broker.cli.examples import EXAMPLES  # only pages of help need them

    if examples := EXAMPLES.get(command):
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for one in examples:
                formatter.write(f"{indent}# {one.purpose}\n{indent}{one.command}\n")


def write_parameters(
    parameters: Sequence[Any], ctx: Any, formatter: Any, *, by_subject: bool = True
) -> None:
    """Write arguments, and options by subject or in one list."""
    found: dict[str, list[tuple[str, str]]] = {}
    for one in parameters:
        if getattr(one, "hidden", False):
            continue
        is_argument = one.param_type_name == "argument"
        subject = getattr(one, "rich_help_panel", None) if by_subject else None
        title = _ARGUMENTS if is_argument else subject or _OPTIONS
        names = value_name(one) if is_argument else option_names(one)
        found.setdefault(title, []).append((names, " ".join(_text(one, ctx).split())))
    for title, rows in found.items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=_NAMES_WIDTH)


def option_names(option: Any) -> str:
    """Return the names of an option and of its value: `-p, --path PATH`."""
    names = sorted([*option.opts, *option.secondary_opts], key=lambda name: name.startswith("--"))
    shown = ", ".join(names)
    return shown if option.is_flag else f"{shown} {value_name(option)}"


def value_name(parameter: Any) -> str:
    """Return the name of a value for its reader, as `PATH`, `N` or `csv|json`."""
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "argument":
        return str(parameter.name.upper())
    choices = getattr(parameter.type, "choices", None)
    if choices is not None:
        return "|".join(str(getattr(one, "value", one)) for one in choices)
    kind = parameter.type.name
    if kind == "path":
        return "PATH"
    return "N" if kind.startswith(("int", "float")) else "TEXT"


def _text(parameter: Any, ctx: Any) -> str:
    notes = "; ".join(_notes(parameter, ctx))
    return f"{parameter.help or ''} {f'[{notes}]' if notes else ''}"


def _notes(parameter: Any, ctx: Any) -> Iterator[str]:
    if parameter.required:
        yield "required"
    if default := _default(parameter, ctx):
        yield f"default: {default}"
    least, most = getattr(parameter.type, "min", None), getattr(parameter.type, "max", None)
    if least is not None:
        yield f"at least {least}"
    if most is not None:
        yield f"at most {most}"
    if parameter.envvar and getattr(parameter, "show_envvar", True):
        yield f"environment: {parameter.envvar}"


def _default(parameter: Any, ctx: Any) -> str:
    """Return the default for a reader; an empty one and that of a plain flag say nothing."""
    shown = parameter.show_default
    if isinstance(shown, str) or not shown:
        return shown or ""
    value = parameter.get_default(ctx, call=False)
    if getattr(parameter, "is_flag", False):
        return parameter.secondary_opts[0] if parameter.secondary_opts and not value else ""
    if value is None or value in ("", (), []):
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
