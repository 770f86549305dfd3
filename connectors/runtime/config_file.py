"""Settings of a connector from TOML; what is wrong is one line that names file and key."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lakehead.storage.errors import SettingsError

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>.*)`)?$", re.DOTALL)


def load_settings(path: Path, kind: type[T]) -> T:
    """Return the settings in a TOML file. Raises SettingsError."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start})") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    return checked_settings(tables, kind, str(path))


def checked_settings(tables: Mapping[str, Any], kind: type[T], name: str) -> T:
    """Return settings out of nested tables; `${env:NAME}` in a text stands for a variable of the
    environment. `name` says where they come from. Raises SettingsError.
    """
    filled = {key: _filled(value, f"{name}: {key}") for key, value in tables.items()}
    try:
        return msgspec.convert(filled, kind)
    except msgspec.ValidationError as error:
        found = _WHERE.match(str(error))
        assert found is not None
        key = (found["where"] or "").removeprefix("$").removeprefix(".")
        what = found["what"][0].lower() + found["what"][1:]
        raise SettingsError(f"{name}: {key}: {what}" if key else f"{name}: {what}") from None


def dotted(table: Mapping[str, Any], where: str) -> dict[str, str | int | float | bool]:
    """Return a table of Kafka's client settings by their names: `a.b = 1` in TOML is a table in a
    table. Raises SettingsError.
    """
    flat: dict[str, str | int | float | bool] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = dotted(value, f"{where}.{key}")
            flat.update({f"{key}.{name}": one for name, one in inner.items()})
        elif isinstance(value, str | int | float | bool):
            flat[key] = value
        else:
            raise SettingsError(f"{where}.{key}: a text, a number, true or false")
    return flat


def _filled(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, where) for one in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found[1], where), value)
    return value


def _variable(name: str, where: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise SettingsError(f"{where}: the environment has no {name}") from None
