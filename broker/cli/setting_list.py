"""`lakehead settings list`: the settings of nodes, found by words, with defaults and meanings."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.sections import sections, shown_default
from lakehead.broker.configs.entries import BROKER_CONFIGS
from lakehead.broker.setting_sources import ENVIRONMENT_PREFIX, SETTINGS, Setting
from lakehead.storage.errors import SettingsError


def list_settings(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Show settings that have all of these words in name or meaning. Without any: all.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of nodes with their defaults and meanings, or find some by words.

    Each is a flag of `lakehead start`, a variable (LAKEHEAD_NUM_PARTITIONS for num.partitions) and
    a name in the file of --config. Sizes take k, m, g and t (64MiB). Values that lie elsewhere are
    ${file:/path:key}, ${directory:/path:name}, ${env:NAME}, ${secretsmanager:name:field} and
    ${ssm::name}.
    """
    found = found_settings(words or [])
    if as_json:
        show_rows([_row(title, one) for title, some in found.items() for one in some], {}, as_json)
        return
    formatter: Any = ctx.make_formatter()
    for title, some in found.items():
        with formatter.section(title):
            formatter.write_dl([(one.name, _meaning(one)) for one in some], col_max=_NAMES_WIDTH)
    typer.echo(formatter.getvalue().strip("\n"))


_NAMES_WIDTH = 26
"""Columns of names, as in the pages of help."""


def found_settings(words: Sequence[str]) -> Mapping[str, Sequence[Setting]]:
    """Return the settings that have all words in their name, section or meaning, by section.

    Raises SettingsError where there are none.
    """
    found = {
        title: [one for one in settings if all(_has(word, title, one) for word in words)]
        for title, settings in sections()
    }
    found = {title: some for title, some in found.items() if some}
    if not found:
        names = [one.name for one in SETTINGS]
        near = difflib.get_close_matches(_name(words[0]), names, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "lakehead settings list shows all of them"
        raise SettingsError(f"no setting has the words {' '.join(words)!r}: {hint}")
    return found


def _has(word: str, title: str, setting: Setting) -> bool:
    if _name(word) in setting.name:
        return True
    return word.lower() in f"{title} {setting.doc}".lower()


def _name(word: str) -> str:
    """Return a word as a part of a name: variables and flags are meant by their settings."""
    bare = word.removeprefix(ENVIRONMENT_PREFIX).lstrip("-")
    return bare.lower().replace("_", ".").replace("-", ".")


def _meaning(setting: Setting) -> str:
    notes = [f"default: {shown}"] if (shown := shown_default(setting)) else []
    if setting.choices:
        notes.append(f"one of: {', '.join(one for one in setting.choices if one)}")
    if BROKER_CONFIGS[setting.name].is_dynamic:
        notes.append("may change while nodes run")
    return f"{setting.doc} [{'; '.join(notes)}]" if notes else setting.doc


def _row(title: str, setting: Setting) -> dict[str, Any]:
    return {
        "setting": setting.name,
        "section": title,
        "default": shown_default(setting) or None,
        "unit": setting.unit or None,
        "least": setting.least,
        "most": setting.most,
        "choices": [one for one in setting.choices if one],
        "environment": setting.environment,
        "dynamic": BROKER_CONFIGS[setting.name].is_dynamic,
        "secret": setting.is_secret,
        "meaning": setting.doc,
    }
