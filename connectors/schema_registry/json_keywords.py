"""What single keywords of two JSON Schemas differ by: limits, patterns, lists of values."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.connectors.schema_registry.json_schema import Part, Source


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new schema does not take any more, at a path of it."""

    kind: str
    path: str


Compare = Callable[[Source | Part | None, Source | Part | None, str], list[Difference]]
"""Compares an old schema with a new one; None: there is none."""


def frozen(value: Any) -> str:
    """Return a value so that equal ones are the same text."""
    return json.dumps(value, sort_keys=True)


def bounds(
    old: Mapping[str, Any], new: Mapping[str, Any], path: str, upper: Mapping[str, str],
    lower: Mapping[str, str],
) -> list[Difference]:  # fmt: skip
    """Return the limits that are new or tighter; `upper` and `lower` name keywords by kind."""
    found = []
    for keywords, sign, worse in ((upper, 1, "DECREASED"), (lower, -1, "INCREASED")):
        for keyword, kind in keywords.items():
            was, now = old.get(keyword), new.get(keyword)
            if now is None:
                continue
            if was is None:
                found.append(Difference(f"{kind}_ADDED", f"{path}/{keyword}"))
            elif sign * now < sign * was:
                found.append(Difference(f"{kind}_{worse}", f"{path}/{keyword}"))
    return found


def strings(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
    """Return the differences of two schemas of strings."""
    found = bounds(old, new, path, {"maxLength": "MAX_LENGTH"}, {"minLength": "MIN_LENGTH"})
    was, now = old.get("pattern"), new.get("pattern")
    if now is not None and was != now:
        kind = "PATTERN_ADDED" if was is None else "PATTERN_CHANGED"
        found.append(Difference(kind, f"{path}/pattern"))
    return found


def numbers(old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of numbers."""
    was, now = _limits(old.raw), _limits(new.raw)
    found = bounds(
        was,
        now,
        path,
        {"maximum": "MAXIMUM", "exclusiveMaximum": "EXCLUSIVE_MAXIMUM"},
        {"minimum": "MINIMUM", "exclusiveMinimum": "EXCLUSIVE_MINIMUM"},
    )
    before, after = old.raw.get("multipleOf"), new.raw.get("multipleOf")
    if after is not None and before != after:
        place = f"{path}/multipleOf"
        if before is None:
            found.append(Difference("MULTIPLE_OF_ADDED", place))
        elif Fraction(str(before)) % Fraction(str(after)):
            expanded = not Fraction(str(after)) % Fraction(str(before))
            kind = "MULTIPLE_OF_EXPANDED" if expanded else "MULTIPLE_OF_CHANGED"
            found.append(Difference(kind, place))
    if new.is_integer and not old.is_integer:
        found.append(Difference("TYPE_NARROWED", path))
    return found


def _limits(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as numbers: in draft 4 `exclusiveMaximum: true` makes `maximum` exclusive."""
    found = dict(raw)
    for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        flag = raw.get(exclusive)
        if isinstance(flag, bool):
            del found[exclusive]
            if flag and limit in raw:
                found[exclusive] = found.pop(limit)
    return found


def enums(old: Sequence[Any], new: Sequence[Any], path: str) -> list[Difference]:
    """Return the differences of two lists of values."""
    was, now = set(map(frozen, old)), set(map(frozen, new))
    if was <= now:
        return []
    kind = "ENUM_ARRAY_NARROWED" if now <= was else "ENUM_ARRAY_CHANGED"
    return [Difference(kind, f"{path}/enum")]


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern is found in a name.

    By RE2, in time that grows with the two alone: whoever registers a schema chooses both. One that
    RE2 does not know (look-ahead) matches nothing.
    """
    try:
        found = pc.match_substring_regex(pa.array([name], pa.string()), pattern)
    except pa.ArrowInvalid:
        return False
    return bool(found[0].as_py())
