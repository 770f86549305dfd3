"""Builds kio's message entities with little ceremony.

kio has one class per message, version and nesting level. A handler names the class and gives the
fields that it knows; those that the version does not have are dropped, so that one handler serves
every version.
"""

import base64
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

_ZERO = timedelta(0)


class _FieldPlan(NamedTuple):
    name: str
    set_slot: Callable[[Any, Any], None]
    default: Any
    """MISSING without one."""
    is_duration: bool


@cache
def _plan(module: ModuleType, name: str) -> tuple[type[Any], tuple[_FieldPlan, ...]]:
    cls: type[Any] = getattr(module, name)
    return cls, tuple(_field_plan(cls, field) for field in fields(cls))


def _field_plan(cls: type[Any], field: Field[Any]) -> _FieldPlan:
    is_throttle = field.name == "throttle_time" and field.default is MISSING
    return _FieldPlan(
        name=field.name,
        # The classes are frozen, and their __init__ sets each slot by a detour.
        set_slot=getattr(cls, field.name).__set__,
        default=_ZERO if is_throttle else field.default,
        is_duration=str(field.metadata.get("kafka_type", "")).startswith("timedelta"),
    )


def entity(module: ModuleType, name: str, /, **values: Any) -> Any:
    """Return `module.name(**values)` of this version.

    Fields that the version does not have are dropped; lists become tuples; durations may be given
    as integer milliseconds; `throttle_time` is 0 unless given. Raises TypeError when a field
    without default is missing.
    """
    cls, plans = _plan(module, name)
    made: Any = object.__new__(cls)
    for field, set_slot, default, is_duration in plans:
        value = values.get(field, default)
        if value is MISSING:
            raise TypeError(f"{name} needs {field}")
        if type(value) is list:
            value = tuple(value)
        elif is_duration and type(value) is int:
            value = timedelta(milliseconds=value)
        set_slot(made, value)
    return made


def milliseconds(duration: timedelta) -> int:
    """Return a duration of a message in whole milliseconds."""
    return round(duration.total_seconds() * 1000)


def uuid_text(uuid: UUID) -> str:
    """Return a UUID as Kafka writes it: in Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
