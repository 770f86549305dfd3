"""Reads the values of options. Each raises SettingsError, with one line for the user."""

import json
import re
from collections.abc import Mapping
from typing import Any

from lakehead.storage.errors import SettingsError

Options = Mapping[str, str]
"""By the name as the options table has it."""

LONG_MAX = 2**63 - 1

_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_UNITS_MS["d"] = 24 * _UNITS_MS["h"]
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


def flag(options: Options, name: str, *, default: bool) -> bool:
    """Return whether an option is true."""
    return choice(options, name, ("true", "false"), default=str(default).lower()) == "true"


def choice(options: Options, name: str, choices: tuple[str, ...], *, default: str) -> str:
    """Return one of `choices`, in lower case."""
    value = options.get(name, default).strip().lower()
    if value not in choices:
        raise SettingsError(f"option {name!r} is {' or '.join(choices)}, not {options[name]!r}")
    return value


def positive(options: Options, name: str, *, most: int = LONG_MAX) -> int | None:
    """Return a number from 1 on, None without the option."""
    return number(options, name, "a positive number", least=1, most=most)


def number(
    options: Options, name: str, what: str, *, least: int, most: int = LONG_MAX
) -> int | None:
    """Return a whole number, None without the option. `what` it is, for the error."""
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"option {name!r} is {what}, not {options[name]!r}")
    return value


def duration_ms(options: Options, name: str, *, default: str) -> float:
    """Return a span of time as Spark writes it (`15m`, `30s`, `500ms`; milliseconds without a
    unit).
    """
    text = options.get(name, default).strip().lower()
    match = _DURATION.fullmatch(text)
    unit = (match[2] or "ms") if match else ""
    if match is None or unit not in _UNITS_MS:
        raise SettingsError(
            f"option {name!r} is a time such as 500ms, 30s or 15m, not {options[name]!r}"
        )
    return int(match[1]) * _UNITS_MS[unit]


def json_object(options: Options, name: str, example: str) -> dict[str, Any]:
    """Return an object in JSON. `example` says how it looks, for the error."""
    try:
        found = json.loads(options[name])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise not_json(options, name, example)
    return found


def not_json(options: Options, name: str, example: str) -> SettingsError:
    """Return the error of an option that is not the JSON it should be."""
    return SettingsError(f"Expected option {name!r} to be JSON: it {example}, got {options[name]}")
