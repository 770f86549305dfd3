"""Commands whose flags are the settings of nodes, one each, under Kafka's names.

Dashes and underscores are taken for dots (`--message-max-bytes`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from lakehead.broker.cli.help_page import HelpCommand
from lakehead.broker.cli.sections import sections, shown_default
from lakehead.broker.setting_sources import SETTINGS, Setting
from lakehead.storage.errors import SettingsError

_KINDS = {"str": "TEXT", "int": "N", "bool": "BOOL"}
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
        given = {name: values.pop(name) for name in switches}
        flags = {setting.name: values[setting.field] for setting in SETTINGS}
        call({**flags, **_overrides(override or [])}, config, **given)

    annotations: dict[str, Any] = {"config": _CONFIG, **switches, "override": _OVERRIDE}
    for title, settings in sections():
        annotations |= {setting.field: _option(setting, title) for setting in settings}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name in switches else None,
            annotation=annotation,
        )
        for name, annotation in annotations.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = annotations
    command.command_options = {  # type: ignore[attr-defined]
        "cls": HelpCommand,
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
