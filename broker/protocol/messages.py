"""Builds kio's message entities with little ceremony.

kio has one class per message, version and nesting level. A handler names the class and gives the
fields that it knows; those that the version does not have are dropped, so that one handler serves
every version.
"""

import base64
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

_ZERO = timedelta(0)


class _Plan(NamedTuple):
    cls: type[Any]
    names: frozenset[str]
    durations: frozenset[str]
    throttled: bool


@cache
def _plan(module: ModuleType, name: str) -> _Plan:
    cls = getattr(module, name)
    assert isinstance(cls, type)
    every = fields(cls)
    return _Plan(
        cls=cls,
        names=frozenset(field.name for field in every),
        durations=frozenset(
            field.name
            for field in every
            if str(field.metadata.get("kafka_type", "")).startswith("timedelta")
        ),
        throttled=any(f.name == "throttle_time" and f.default is MISSING for f in every),
    )


def entity(module: ModuleType, name: str, /, **values: Any) -> Any:
    """Return `module.name(**values)` of this version.

    Fields that the version does not have are dropped; lists become tuples; durations may be given
    as integer milliseconds; `throttle_time` is 0 unless given. Raises TypeError when a field
    without default is missing.
    """
    plan = _plan(module, name)
    chosen = {
        key: tuple(value) if type(value) is list else value
        for key, value in values.items()
        if key in plan.names
    }
    for key in plan.durations:
        value = chosen.get(key)
        if type(value) is int:
            chosen[key] = timedelta(milliseconds=value)
    if plan.throttled and "throttle_time" not in chosen:
        chosen["throttle_time"] = _ZERO
    return plan.cls(**chosen)


def milliseconds(duration: timedelta) -> int:
    """Return a duration of a message in whole milliseconds."""
    return round(duration.total_seconds() * 1000)


def uuid_text(uuid: UUID) -> str:
    """Return a UUID as Kafka writes it: in Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
