"""What a config is: its name, type, default and bounds, and what Lakehead makes of it."""

import re
from dataclasses import dataclass
from enum import Enum, IntEnum

from kio.schema.errors import ErrorCode

from broker.protocol.errors import KafkaError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
_SHORT_MAX = 2**15 - 1


class ConfigType(IntEnum):
    """Types, as DescribeConfigs numbers them (v3+)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Effect(Enum):
    """What setting a config does here."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Taken and shown, so that tools and files of settings made for Kafka work; changes nothing."""
    REFUSED = "refused"
    """Not taken: whoever sets it counts on something that is not so here."""


_MOST = {ConfigType.SHORT: _SHORT_MAX, ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}
_TEXTS = frozenset({ConfigType.STRING, ConfigType.CLASS, ConfigType.PASSWORD})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config. Bounds are inclusive; a default of None is null.

    `synonym` is, for one of topics, the broker's name for its default. `pattern` is what each item
    of a list has to match.
    """

    name: str
    kind: ConfigType
    default: str | None
    note: str
    effect: Effect = Effect.HONOURED
    synonym: str = ""
    is_dynamic: bool = True
    least: float | None = None
    most: float | None = None
    excluded: float | None = None
    choices: tuple[str, ...] | None = None
    pattern: str | None = None

    def check(self, value: str, code: ErrorCode = ErrorCode.invalid_config) -> None:
        """Raise KafkaError of this code when the value is not of the type or out of bounds."""
        problem = self._problem(value.strip())
        if problem is not None:
            raise KafkaError(
                code, f"Invalid value {value} for configuration {self.name}: {problem}"
            )

    def _problem(self, text: str) -> str | None:
        if self.kind is ConfigType.LIST:
            return self._problem_of_items(items_of(text))
        if self.choices is not None:
            return None if text in self.choices else self._choice()
        if self.kind is ConfigType.BOOLEAN:
            is_flag = text.lower() in {"true", "false"}
            return None if is_flag else "Expected value to be either true or false"
        if self.kind in _TEXTS:
            return None
        return self._problem_of_number(text)

    def _problem_of_items(self, items: list[str]) -> str | None:
        if self.choices is not None and not set(items) <= set(self.choices):
            return self._choice()
        if self.pattern is not None and items != ["*"]:
            for item in items:
                if re.fullmatch(self.pattern, item) is None:
                    return f"{item} does not match {self.pattern}"
        return None

    def _problem_of_number(self, text: str) -> str | None:
        try:
            number = float(text) if self.kind is ConfigType.DOUBLE else int(text)
        except ValueError:
            return f"Not a number of type {self.kind.name}"
        bound = _MOST.get(self.kind)
        if bound is not None and not -bound - 1 <= number <= bound:
            return f"Not a number of type {self.kind.name}"
        if number == self.excluded:
            return f"Value must not be {_number(self.excluded)}"
        if self.least is not None and not number >= self.least:
            return f"Value must be at least {_number(self.least)}"
        if self.most is not None and not number <= self.most:
            return f"Value must be no more than {_number(self.most)}"
        return None

    def _choice(self) -> str:
        return f"String must be one of: {', '.join(self.choices or ())}"


def _number(bound: float | None) -> str:
    return "" if bound is None else f"{bound:.15g}"


def items_of(text: str) -> list[str]:
    """Return the items of a list's value."""
    return [item.strip() for item in text.split(",") if item.strip()]
