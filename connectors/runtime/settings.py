"""Settings of a connector from TOML, and those of a run; an error is one line with file and key."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

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


Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
"""Part of a topic's name, a group id and a transactional id."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[run]`."""

    transaction_bytes: Annotated[int, Meta(ge=1)] = 16 * 1024 * 1024
    """A transaction is committed when it has this many bytes of keys and values ..."""
    transaction_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """... or is this old."""
    timeout_seconds: Annotated[float, Meta(ge=1, le=900)] | None = None
    """After this long the cluster aborts a transaction by itself: what a killed run left open keeps
    readers of committed records waiting so long, unless it is run again. 60, and 900 where a
    transaction cannot be cut (delta).
    """
    poll_seconds: Annotated[float, Meta(gt=0)] = 5.0
    """With --follow: how long to wait before looking for more."""
    retry_seconds: Annotated[float, Meta(ge=0)] = 120.0
    """Time to wait for an unreachable cluster, and to repeat aborted transactions."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """Time that a stopped run waits for an unreachable cluster."""
    positions_topic: Name | None = None
    """Topic of the positions: lakehead-connect-NAME unless given. One topic for each connector, so
    that none waits for the transactions of another.
    """
