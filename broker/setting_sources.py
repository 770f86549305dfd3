"""Where a node's settings come from, and what is said of each.

A setting is taken, in this order of precedence, from a flag (`--message.max.bytes`), the
environment (`LAKEHEAD_MESSAGE_MAX_BYTES`), a TOML file, its default. `SETTINGS` lists them for
`--help` and the generated docs.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.settings import GIB, KIB, MIB, Settings
from storage.errors import SettingsError

ENVIRONMENT_PREFIX = "LAKEHEAD_"

_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}
_SIZE = re.compile(r"^(-?\d+)\s*([kmgt]?)(?:i?b)?$", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, for help and docs."""

    name: str
    field: str
    kind: str
    default: Any
    unit: str
    doc: str
    least: int | None
    most: int | None

    @property
    def environment(self) -> str:
        """The environment variable of the setting."""
        return ENVIRONMENT_PREFIX + self.field.upper()

    def parse(self, text: object) -> Any:
        """Return the value of a text or TOML value. Raises SettingsError, one clear line."""
        try:
            value = self._parsed(text)
        except ValueError:
            raise SettingsError(f"{self.name}: {text!r} is not {_ARTICLES[self.kind]}") from None
        if isinstance(value, int) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                raise SettingsError(f"{self.name}: {value} is less than {self.least}")
            if self.most is not None and value > self.most:
                raise SettingsError(f"{self.name}: {value} is more than {self.most}")
        return value

    def _parsed(self, given: object) -> Any:
        if self.kind == "bool":
            if isinstance(given, bool):
                return given
            if str(given).lower() not in _BOOLEANS:
                raise ValueError(given)
            return _BOOLEANS[str(given).lower()]
        if self.kind == "int":
            if isinstance(given, bool):
                raise ValueError(given)
            if isinstance(given, int):
                return given
            match = _SIZE.match(str(given).strip())
            if match is None or (match[2] and self.unit != "bytes"):
                raise ValueError(given)
            return int(match[1]) * _UNITS[match[2].lower()]
        return str(given)


_ARTICLES = {"bool": "true or false", "int": "a whole number", "str": "a text"}

SETTINGS: tuple[Setting, ...] = tuple(
    Setting(
        name=field.name.replace("_", "."),
        field=field.name,
        kind=field.type if isinstance(field.type, str) else field.type.__name__,
        default=field.default,
        unit=field.metadata["unit"],
        doc=field.metadata["doc"],
        least=field.metadata["least"],
        most=field.metadata["most"],
    )
    for field in dataclasses.fields(Settings)
)
"""Every setting, in the order of the documentation."""

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a TOML table with nested tables (`[upload] size = …`) as dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key.replace('_', '.')}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _read_file(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return _flat(tomllib.load(file))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from None


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """Return the settings from flags (by name), environment and TOML file.

    A value of None in `flags` means not given. Raises SettingsError for unknown names and bad
    values.
    """
    given: dict[str, Any] = _read_file(file) if file else {}
    for setting in SETTINGS:
        text = (environment or {}).get(setting.environment)
        if text is not None:
            given[setting.name] = text
    given.update({key.replace("_", "."): v for key, v in (flags or {}).items() if v is not None})
    unknown = sorted(set(given) - set(_BY_NAME))
    if unknown:
        raise SettingsError(f"unknown setting: {', '.join(unknown)}")
    values = {_BY_NAME[name].field: _BY_NAME[name].parse(value) for name, value in given.items()}
    if values.get("log_message_timestamp_type", "CreateTime") not in {
        "CreateTime",
        "LogAppendTime",
    }:
        raise SettingsError("log.message.timestamp.type: CreateTime or LogAppendTime")
    return Settings(**values)
