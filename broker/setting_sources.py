"""The sources of a node's settings, and their descriptions.

A setting is taken, in this order of precedence, from a flag (`--message.max.bytes`), the
environment (`LAKEHEAD_MESSAGE_MAX_BYTES`), a TOML file, its default. `SETTINGS` lists them for
`--help` and the generated docs.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehead.broker.configs.definition import Effect
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import GIB, KIB, MIB, Settings
from lakehead.storage.errors import SettingsError

ENVIRONMENT_PREFIX = "LAKEHEAD_"

_OTHER_VARIABLES = {
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        *("CONFIG", "PATH", "CACHE", "SUPERVISOR", "FAILPOINT", "CI", "SEED", "DAGS"),
        *("SCHEMA_REGISTRY", "SCHEMA_REGISTRY_CA_FILE", "REGISTRY_BOOTSTRAP"),
    )
}
"""Variables that other commands read, and tests."""
_SERVICE_LINK = re.compile(rf"{ENVIRONMENT_PREFIX}(SERVICE_HOST|SERVICE_PORT.*|PORT_\d+_.*)$")
"""Variables that Kubernetes gives to containers for a Service with the name lakehead."""

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
    choices: tuple[str, ...]
    """Texts that it may be, in any case; empty: any text."""

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
        if self.choices and value.lower() not in self.choices:
            raise SettingsError(f"{self.name}: {value!r} is not one of: {', '.join(self.choices)}")
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
        choices=field.metadata["choices"],
    )
    for field in dataclasses.fields(Settings)
)
"""Every setting, in the order of the documentation."""

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_ALIASES_MS = {"log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Names that Kafka reads where log.retention.ms is not given, minutes before hours."""


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


def _of_file(path: str) -> dict[str, Any]:
    """Return a file's settings, checked, without those of Kafka's that have no effect here."""
    given = _read_file(path)
    for name in _ALIASES_MS:
        if name in given:
            value = given.pop(name)
            given.setdefault("log.retention.ms", _milliseconds(name, value))
    for name in set(given) - set(_BY_NAME):
        if name in KAFKA_CONFIGS:
            _check_kafkas(name, given.pop(name))
    return given


def _milliseconds(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise SettingsError(f"{name}: {value!r} is not a whole number") from None
    return number * _ALIASES_MS[name] if number >= 0 else -1


def _check_kafkas(name: str, value: object) -> None:
    """Check a setting that Kafka has and nodes do not. Raises SettingsError when it is refused."""
    config = KAFKA_CONFIGS[name]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if config.effect is Effect.HONOURED:
        raise SettingsError(
            f"{name}: set it for all brokers of a running cluster, with kafka-configs "
            "--entity-type brokers --entity-default"
        )
    if config.effect is Effect.REFUSED and text != (config.default or ""):
        raise SettingsError(f"{name}: {config.note}")


def _check_choice(name: str, text: str) -> None:
    """Check a value of which Kafka says what it may be. Raises SettingsError."""
    config = KAFKA_CONFIGS.get(name)
    if config is None or config.choices is None:
        return
    try:
        config.parse(text)
    except KafkaError as error:
        raise SettingsError(f"{name}: {error}") from None


def without_effect(file: str | None) -> list[str]:
    """Return the names in a settings file that are taken and change nothing. Raises SettingsError
    when it cannot be read.
    """
    names = _read_file(file) if file else {}
    return sorted(
        name
        for name in names
        if name not in _BY_NAME
        and name in KAFKA_CONFIGS
        and KAFKA_CONFIGS[name].effect is Effect.NO_EFFECT
    )


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of `environment` that has the prefix of settings and is not
    one, with the setting that it resembles.

    It is not an error: the environment is shared, and Kubernetes sets variables of a Service named
    lakehead there.
    """
    known = {setting.environment for setting in SETTINGS} | _OTHER_VARIABLES
    lines = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known or _SERVICE_LINK.match(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f": did you mean {near[0]}?" if near else ""
        lines.append(f"the environment's {name} is not a setting{hint}")
    return lines


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """Return the settings from flags (by name), environment and TOML file.

    A value of None in `flags` means not given. A file may hold settings of Kafka that have no
    effect here (see `without_effect`). Raises SettingsError for unknown names and bad values.
    """
    given = _of_file(file) if file else {}
    for setting in SETTINGS:
        text = (environment or {}).get(setting.environment)
        if text is not None:
            given[setting.name] = text
    given.update({key.replace("_", "."): v for key, v in (flags or {}).items() if v is not None})
    unknown = sorted(set(given) - set(_BY_NAME))
    if unknown:
        raise SettingsError(f"unknown setting: {', '.join(unknown)}")
    values = {_BY_NAME[name].field: _BY_NAME[name].parse(value) for name, value in given.items()}
    for name, value in given.items():
        _check_choice(name, str(value))
    return Settings(**values)
