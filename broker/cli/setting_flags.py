"""Commands whose flags are the settings of nodes, one each, under Kafka's names.

Dashes and underscores are taken for dots (`--message-max-bytes`). `--help` has the flags that most
nodes need, `--help-all` has every flag.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from lakehead.broker.cli.help_page import HelpCommand, write_parameters
from lakehead.broker.cli.sections import sections, shown_default
from lakehead.broker.setting_sources import SETTINGS, Setting
from lakehead.storage.errors import SettingsError

_KINDS = {"str": "TEXT", "int": "N", "bool": "BOOL"}
_ALL = "lakehead.help_all"
"""The key of a context's `meta` that is true for the page of every flag."""
_FEW = frozenset(
    {
        *("config", "data", "store", "wal", "nodes", "node_id", "host", "port", "advertised_host"),
        *("metrics_port", "log_level", "as_json", "help_all", "help"),
    }
)
"""Parameters on the page of `--help`."""
_UNITS = {"bytes": "SIZE", "ms": "MS", "minutes": "MINUTES"}

_CONFIG: Any = Annotated[
    str | None,
    typer.Option(
        "--config", "-c", metavar="FILE", envvar="LAKEHEAD_CONFIG", help="Settings as TOML."
    ),
]
_OVERRIDE: Any = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="NAME=VALUE",
        help="Any setting by its name, also of a single listener: "
        "listener.name.internal.ssl.client.auth=required. May be repeated.",
        show_default=False,
    ),
]


class SettingsCommand(HelpCommand):
    """A command with a flag for each setting, and two pages of help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags that most nodes need, or every flag by subject."""
        is_all = ctx.meta.get(_ALL, False)
        shown = [one for one in self.get_params(ctx) if is_all or one.name in _FEW]
        write_parameters(shown, ctx, formatter, by_subject=is_all)


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HELP_ALL: Any = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_show_all,
        is_eager=True,
        help=f"Show the flags of all {len(SETTINGS)} settings and exit.",
    ),
]


def command_with_setting_flags(
    call: Callable[..., None], *, help_text: str, **switches: Any
) -> Callable[..., None]:
    """Return a command that calls `call(flags, config, **switches)`: the settings that were given
    as flags, by name, with None for the others, and the settings file.

    `switches` are annotations of further options, which are false unless given. typer makes the
    options of the function's signature.
    """

    def command(
        config: str | None = None, override: list[str] | None = None, **values: Any
    ) -> None:
        given = {name: values[name] for name in switches}
        flags = {setting.name: values[setting.field] for setting in SETTINGS}
        call({**flags, **_overrides(override or [])}, config, **given)

    annotations: dict[str, Any] = {"config": _CONFIG}
    for title, settings in sections():
        annotations |= {setting.field: _option(setting, title) for setting in settings}
    annotations |= {**switches, "override": _OVERRIDE, "help_all": _HELP_ALL}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name in switches or name == "help_all" else None,
            annotation=annotation,
        )
        for name, annotation in annotations.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = annotations
    command.command_options = {  # type: ignore[attr-defined]
        "cls": SettingsCommand,
        "help": help_text,
        "context_settings": {"token_normalize_func": _dotted},
    }
    return command


def _dotted(name: str) -> str:
    return name.replace("-", ".").replace("_", ".")


def _overrides(given: Sequence[str]) -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise SettingsError(f"--override: {one!r} is not NAME=VALUE")
        found[name] = value
    return found


def _option(setting: Setting, panel: str) -> Any:
    return Annotated[
        str | None,
        typer.Option(
            f"--{setting.name}",
            metavar=_UNITS.get(setting.unit, _KINDS[setting.kind]),
            help=setting.doc,
            rich_help_panel=panel,
            show_default=shown_default(setting) or False,
        ),
    ]
