"""The sources of a node's settings, and their descriptions.

A setting is taken, in this order of precedence, from a flag (`--message.max.bytes`), the
environment (`LAKEHEAD_MESSAGE_MAX_BYTES`), a TOML file, its default. A text of any of them may have
references to values that lie elsewhere (`config_providers`). `SETTINGS` lists the settings for
`--help` and the generated docs. Settings of a single listener (`listener.name.<name>.<setting>`)
have no flag; `--override NAME=VALUE` sets them.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immutables import Map

from lakehead.broker.configs.definition import ConfigType, Effect
from lakehead.broker.configs.kafka_broker_configs import KAFKA_CONFIGS
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import GIB, KIB, MIB, OVERRIDE_PREFIX, Settings
from lakehead.storage.config_providers import (
    AwsCall,
    ConfigProviders,
    Secret,
    is_reference,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.hidden_fields import HIDDEN

ENVIRONMENT_PREFIX = "LAKEHEAD_"
_OVERRIDE_VARIABLE = f"{ENVIRONMENT_PREFIX}LISTENER_NAME_"

_OTHER_VARIABLES = {
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        *("CONFIG", "PATH", "CACHE", "SUPERVISOR", "FAILPOINT", "CI", "SEED", "DAGS"),
        *("SCHEMA_REGISTRY", "SCHEMA_REGISTRY_CA_FILE", "REGISTRY_BOOTSTRAP", "COMMAND_CONFIG"),
    )
}
"""Variables that other commands read, and tests."""
_OF_ONE_BROKER = frozenset({"cordoned.log.dirs"})
"""Configs that are set for a single broker while it runs, and not by settings."""
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
    is_secret: bool = False
    """True if its value is shown nowhere, and not taken from a command line."""

    @property
    def environment(self) -> str:
        """The environment variable of the setting."""
        return ENVIRONMENT_PREFIX + self.field.upper()

    def parse(self, text: object) -> Any:
        """Return the value of a text or TOML value. Raises SettingsError, one clear line."""
        try:
            value = self._parsed(text)
        except ValueError:
            wanted = _SIZES if self.unit == "bytes" else _ARTICLES[self.kind]
            raise SettingsError(f"{self.name}: {text!r} is not {wanted}") from None
        if self.is_secret:
            return Secret(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                raise SettingsError(f"{self.name}: {value} is less than {self.least}")
            if self.most is not None and value > self.most:
                raise SettingsError(f"{self.name}: {value} is more than {self.most}")
        if self.choices and value.lower() not in {choice.lower() for choice in self.choices}:
            shown = ", ".join(choice for choice in self.choices if choice)
            raise SettingsError(f"{self.name}: {value!r} is not one of: {shown}")
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
        return given if isinstance(given, str) else str(given)


_ARTICLES = {"bool": "true or false", "int": "a whole number", "str": "a text"}
_SIZES = "a size: write a number of bytes, or 64KiB, 64MiB, 2GiB"

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
        is_secret=field.metadata["is_secret"],
    )
    for field in dataclasses.fields(Settings)
    if field.metadata
)
"""Every setting, in the order of the documentation."""

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_ALIASES_MS = {"log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Names that Kafka reads where log.retention.ms is not given, minutes before hours."""


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a TOML table with nested tables (`[upload] size = …`) as dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        is_override = f"{prefix}{key}".startswith(OVERRIDE_PREFIX)  # a listener may be SASL_SSL
        name = f"{prefix}{key if is_override else key.replace('_', '.')}"
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


def _of_file(path: str, providers: ConfigProviders) -> dict[str, Any]:
    """Return a file's settings, checked, without those of Kafka's that have no effect here."""
    given = {name: providers.resolved(name, value) for name, value in _read_file(path).items()}
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
        is_of_one = name in _OF_ONE_BROKER
        brokers, entity = ("a broker", "name ID") if is_of_one else ("all brokers", "default")
        raise SettingsError(
            f"{name}: set it for {brokers} of a running cluster, with kafka-configs "
            f"--entity-type brokers --entity-{entity}"
        )
    if config.effect is Effect.REFUSED and text != (config.default or ""):
        raise SettingsError(f"{name}: {config.note}")


def _check_value(name: str, text: str) -> None:
    """Check a value of which Kafka says what it may be, or may not be. Raises SettingsError."""
    config = KAFKA_CONFIGS.get(name)
    if config is None or (config.choices is None and config.excluded is None):
        return
    try:
        config.parse(text)
    except KafkaError as error:
        reason = HIDDEN if isinstance(text, Secret) else error
        raise SettingsError(f"{name}: {reason}") from None


_LISTENER_SETTINGS = frozenset(
    {"connections.max.reauth.ms", "max.connection.creation.rate", "max.connections"}
)
"""Settings that a listener may have of its own, beside those of TLS and SASL."""
_MECHANISMS = frozenset({"gssapi", "oauthbearer", "plain", "scram-sha-256", "scram-sha-512"})


def is_listener_setting(name: str) -> bool:
    """Return true if a listener may have this setting of its own. Those of SASL may begin with the
    name of a mechanism, as in Kafka.
    """
    mechanism, _, rest = name.partition(".")
    if mechanism in _MECHANISMS:
        name = rest
        if not name.startswith("sasl.") and name != "connections.max.reauth.ms":
            return False
    if name not in _BY_NAME and name not in KAFKA_CONFIGS:
        return False
    return name.startswith(("ssl.", "sasl.")) or name in _LISTENER_SETTINGS


def split_override(name: str) -> tuple[str, str]:
    """Return the listener's name, in small letters, and the setting of a name that begins with
    `OVERRIDE_PREFIX`. Raises SettingsError if listeners have no such setting.
    """
    listener, _, setting = name.removeprefix(OVERRIDE_PREFIX).partition(".")
    if not listener or not is_listener_setting(setting):
        raise SettingsError(f"unknown setting: {name}: listeners have no {setting} of their own")
    return listener.lower(), setting


def is_secret_setting(name: str) -> bool:
    """Return true if the value of a setting is a secret, also of a single listener's."""
    if name.startswith(OVERRIDE_PREFIX):
        _, name = split_override(name)
    if name in _BY_NAME:
        return _BY_NAME[name].is_secret
    mechanism, _, rest = name.partition(".")
    config = KAFKA_CONFIGS.get(rest if mechanism in _MECHANISMS else name)
    return config is not None and config.kind is ConfigType.PASSWORD


def _checked_override(name: str, value: object) -> str:
    listener, setting = split_override(name)
    known = _BY_NAME.get(setting)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if is_secret_setting(name):
        text = Secret(text)
    if known is not None:
        try:
            known.parse(value)
        except SettingsError as error:
            raise SettingsError(f"{OVERRIDE_PREFIX}{listener}.{error}") from None
    return text


def _overrides_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of single listeners that the environment has:
    LAKEHEAD_LISTENER_NAME_INTERNAL_SSL_CLIENT_AUTH.
    """
    found = {}
    for variable, value in environment.items():
        name = override_of(variable)
        if name is not None:
            found[name] = value
    return found


def override_of(variable: str) -> str | None:
    """Return the setting of a listener that a variable of the environment is; None if it is not
    one.
    """
    rest = variable.removeprefix(_OVERRIDE_VARIABLE)
    if rest == variable:
        return None
    # The longest setting that it ends with: ssl.keystore.key is not a setting `key`.
    for setting in sorted(_BY_NAME, key=len, reverse=True):
        suffix = f"_{setting.upper().replace('.', '_')}"
        if rest.endswith(suffix) and is_listener_setting(setting):
            return f"{OVERRIDE_PREFIX}{rest.removesuffix(suffix).lower()}.{setting}"
    return None


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
        if override_of(name) is not None:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f": did you mean {near[0]}?" if near else ""
        lines.append(f"the environment's {name} is not a setting{hint}")
    return lines


def _with_hint(name: str) -> str:
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.8)
    return f"{name} (did you mean {near[0]}?)" if near else name


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
    aws: AwsCall | None = None,
) -> Settings:
    """Return the settings from flags (by name), environment and TOML file.

    A value of None in `flags` means not given. A file may hold settings of Kafka that have no
    effect here (see `without_effect`). `aws` replaces calls of AWS, by references. Raises
    SettingsError for unknown names, bad values, and references that lead nowhere.
    """
    providers = ConfigProviders(environment or {}, aws)
    given = _of_file(file, providers) if file else {}
    others: dict[str, Any] = dict(_overrides_of(environment or {}))
    for setting in SETTINGS:
        text = (environment or {}).get(setting.environment)
        if text is not None:
            others[setting.name] = text
    for key, value in (flags or {}).items():
        if value is not None:
            others[key if key.startswith(OVERRIDE_PREFIX) else key.replace("_", ".")] = value
    given |= {name: providers.resolved(name, value) for name, value in others.items()}
    overrides = {
        "{}{}.{}".format(OVERRIDE_PREFIX, *split_override(name)): _checked_override(
            name, given.pop(name)
        )
        for name in list(given)
        if name.startswith(OVERRIDE_PREFIX)
    }
    unknown = sorted(set(given) - set(_BY_NAME))
    if unknown:
        raise SettingsError(f"unknown setting: {', '.join(map(_with_hint, unknown))}")
    values = {_BY_NAME[name].field: _BY_NAME[name].parse(value) for name, value in given.items()}
    for name, value in given.items():
        _check_value(name, value if isinstance(value, str) else str(value))
    return Settings(**values, listener_overrides=Map(overrides))


def check_flags(flags: Mapping[str, str | None]) -> None:
    """Raise SettingsError for a secret that was written on a command line, where every user of the
    machine can read it.
    """
    for name, value in flags.items():
        if value and is_secret_setting(name) and not is_reference(value):
            raise SettingsError(
                f"{name}: a command line is shown in lists of processes: give it in the settings "
                "file or the environment, or as a reference like ${file:/path:key}"
            )
