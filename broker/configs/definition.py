"""The definition of a config: its name, type, default, bounds and effect in Lakehead."""

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError

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
    """The effect of setting a config."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Taken and shown, so that tools and files of settings made for Kafka work; changes nothing."""
    REFUSED = "refused"
    """Refused: a user of it relies on something that is different here."""


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

    def parse(self, value: str, code: ErrorCode = ErrorCode.invalid_config) -> str:
        """Return a value in the form in which Kafka shows it, read by the grammar of Kafka's
        ConfigDef: `+5` as 5, `TRUE` as true, lists without blanks around their commas.

        Raises KafkaError of this code when it is not of the type or out of bounds.
        """
        try:
            return self._parsed(value.strip(_BLANKS))
        except ValueError as problem:
            raise KafkaError(
                code, f"Invalid value {value} for configuration {self.name}: {problem}"
            ) from None

    def _parsed(self, text: str) -> str:
        if self.kind is ConfigType.LIST:
            return ",".join(self._items(text))
        if self.choices is not None:
            if text not in self.choices:
                raise self._no_choice()
            return text
        if self.kind is ConfigType.BOOLEAN:
            if text.lower() not in {"true", "false"}:
                raise ValueError("Expected value to be either true or false")
            return text.lower()
        return text if self.kind in _TEXTS else self._number(text)

    def _items(self, text: str) -> list[str]:
        items = split_list(text)
        if self.choices is not None:
            if "" in items:
                raise ValueError("Values of the list must not be empty")
            if not set(items) <= set(self.choices):
                raise self._no_choice()
            return list(dict.fromkeys(items))
        if self.pattern is not None and items != ["*"]:
            for item in items:
                if item and re.fullmatch(self.pattern, item) is None:
                    raise ValueError(f"{item} does not match {self.pattern}")
        return items

    def _number(self, text: str) -> str:
        number: float
        if self.kind is ConfigType.DOUBLE:
            number = _double(text)
        elif _WHOLE.fullmatch(text):
            number = int(text)
        else:
            raise ValueError(f"Not a number of type {self.kind.name}")
        bound = _MOST.get(self.kind)
        if bound is not None and not -bound - 1 <= number <= bound:
            raise ValueError(f"Not a number of type {self.kind.name}")
        if number == self.excluded:
            raise ValueError(f"Value must not be {_shown_bound(self.excluded)}")
        if self.least is not None and not number >= self.least:
            raise ValueError(f"Value must be at least {_shown_bound(self.least)}")
        if self.most is not None and not number <= self.most:
            raise ValueError(f"Value must be no more than {_shown_bound(self.most)}")
        return _shown_double(number) if self.kind is ConfigType.DOUBLE else str(number)

    def _no_choice(self) -> ValueError:
        return ValueError(f"String must be one of: {', '.join(self.choices or ())}")


_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that String.trim of Java removes."""
_WHOLE = re.compile(r"[+-]?\d+")
_COMMA = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_NAMED = re.compile(r"[+-]?(?:NaN|Infinity)")


def _double(text: str) -> float:
    """Return the number that Double.valueOf of Java reads from a text. Raises ValueError."""
    if _NAMED.fullmatch(text):
        return float(text)
    if found := _DECIMAL.fullmatch(text):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(text):
        return float.fromhex(found[1])
    raise ValueError("Not a number of type DOUBLE")


def _shown_double(number: float) -> str:
    """Return a finite number as Double.toString of Java writes it."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(float(number))
    digits, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}E{int(exponent)}"


def _shown_bound(bound: float | None) -> str:
    return "" if bound is None else f"{bound:.15g}"


def split_list(text: str) -> list[str]:
    """Return the items of a list's value as Kafka reads them; those between two commas are empty.

    A blank text is a list without items.
    """
    trimmed = text.strip(_BLANKS)
    return _COMMA.split(trimmed) if trimmed else []
