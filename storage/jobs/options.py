"""The options of a job: a frozen dataclass whose fields say all that a surface needs to know.

A field is declared once, by `option`: default, help, bounds, unit, and its name on the command line
and in a form. The command line, operators, DAG parameters and docs derive theirs from it, and
`parsed` is the one place that turns what they are given into values.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lakehead.storage.errors import SettingsError

T = TypeVar("T")
_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """The presentation of an option. `flag` is its name on the command line (empty: it has none);
    `metavar` is the unit there. An option with `is_argument` is positional. A form shows `title`,
    and `help` unless `form` has a description; `form` has the exceptions of a form's JSON schema (a
    narrower maximum, an empty default). Without `in_form` only an operator's arguments have it;
    with `is_of_command` these do not either: it changes what the command shows. `parse` reads a
    value of a type that is not one of the plain ones, and raises ValueError.
    """

    help: str
    title: str = ""
    flag: str = ""
    short_flag: str = ""
    metavar: str = ""
    least: int | None = None
    most: int | None = None
    is_argument: bool = False
    in_form: bool = True
    is_of_command: bool = False
    form: Mapping[str, Any] = field(default_factory=dict)
    parse: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDefaults:
    """Defaults that brokers' settings give to topics, by Kafka's names. The command line takes them
    from the nodes' settings (`--config`), an operator as a mapping or as JSON.
    """

    given: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a job: its name, the type of its values, its default, and what is shown."""

    name: str
    type: Any
    default: Any
    info: OptionInfo

    @property
    def plain_type(self) -> Any:
        """The type without None."""
        if get_origin(self.type) in {Union, UnionType}:
            (plain,) = (one for one in get_args(self.type) if one is not type(None))
            return plain
        return self.type

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an option that has a few, or none."""
        return get_args(self.plain_type) if get_origin(self.plain_type) is Literal else ()

    def value(self, given: Any) -> Any:
        """Return a value as the job takes it. Raises ValueError, TypeError."""
        if self.choices:
            return self.choices[self.choices.index(str(given))]
        value = (self.info.parse or _PARSERS[self.plain_type])(given)
        least, most = self.info.least, self.info.most
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(value)
        return value


def option(default: T, help: str, **shown: Any) -> T:  # noqa: A002 - as command lines call it
    """Return the field of an option with its default; `shown` is as in OptionInfo."""
    metadata = {_KEY: OptionInfo(help=help, **shown)}
    if isinstance(default, BrokerDefaults):
        made: T = field(default_factory=type(default), metadata=metadata)
        return made
    return field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in its order."""
    hints = get_type_hints(kind)
    found = []
    empty = kind()
    for one in fields(kind):
        default = getattr(empty, one.name)
        info = one.metadata[_KEY]
        found.append(Option(name=one.name, type=hints[one.name], default=default, info=info))
    return tuple(found)


def parsed(job: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """Return the options of a job from values by name, texts of templates among them; None and
    empty texts are left out.

    Raises SettingsError for an option that there is not, and for a value that cannot be.
    """
    known = {one.name: one for one in options_of(kind)}
    values = {}
    for name, value in given.items():
        if name not in known:
            names_known = ", ".join(known) or "none"
            raise SettingsError(f"job {job} has no option {name!r}: there are {names_known}")
        if value is None or value == "":
            continue
        try:
            values[name] = known[name].value(value)
        except (TypeError, ValueError):
            raise SettingsError(f"option {name} of job {job} cannot be {value!r}") from None
    return kind(**values)


def names(value: Any) -> tuple[str, ...]:
    """Return names given as a list, or as a text with commas or spaces in between."""
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(str(name) for name in given)


def truth(value: Any) -> bool:
    """Return a truth value, given as such or as text. Raises ValueError."""
    text = str(value).strip().lower()
    if text not in {"true", "false", "1", "0"}:
        raise ValueError(value)
    return text in {"true", "1"}


def mapping(value: Any) -> dict[str, str]:
    """Return texts by name, given as such or as JSON. Raises ValueError, TypeError."""
    given = json.loads(value) if isinstance(value, str) else value
    return {str(name): str(one) for name, one in dict(given).items()}


def _defaults(value: Any) -> BrokerDefaults:
    return value if isinstance(value, BrokerDefaults) else BrokerDefaults(given=mapping(value))


_PARSERS: Mapping[Any, Callable[[Any], Any]] = {
    int: int,
    str: str,
    bool: truth,
    tuple[str, ...]: names,
    BrokerDefaults: _defaults,
}
