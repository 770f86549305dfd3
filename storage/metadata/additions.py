"""Records, fields and checkpoint columns that each feature level brought, declared in one place.

A writer leaves out, or refuses, what is above the level in force: a release that supports only that
level would not understand it. **To add a record, a field or a column**, declare it here under the
newest level. That level is open until it is part of a release; then its fixtures are kept
(`tests/fixtures`), and the next addition opens the next level. A test compares the declarations
with the kept fixtures, so that an addition without a declaration fails.

A field that is added has a default that means "as before". Below its level a field in `hints` is
left out, so that the record does what it did before; a record that sets one in `fields` is refused.
A rule that decides otherwise than before looks at `MetadataImage.metadata_version`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from lakehead.storage.errors import FeatureNotEnabled
from lakehead.storage.format.checkpoint import Columns
from lakehead.storage.format.feature_level import BASE_LEVEL, NEWEST_LEVEL
from lakehead.storage.metadata.records import FeatureLevel, Record

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """The additions of one feature level.

    `records`: types of records, with all their fields. `fields` and `hints`: fields of records, or
    of structs inside them, that were there before; see above. `columns`: columns of a checkpoint's
    tables; of a table that is new, all of them.
    """

    records: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hints: Mapping[str, frozenset[str]] = field(default_factory=dict)
    columns: Mapping[str, frozenset[str]] = field(default_factory=dict)


ADDITIONS: Mapping[int, Additions] = {
    2: Additions(
        records=frozenset(
            {
                *("FeatureLevel", "NodeSecret", "StartLog", "AcceptLogLoss"),
                *("DelegationTokenUpsert", "DelegationTokenDelete", "ClientMetricsConfig"),
                *("InheritTail", "CommitTail", "RequestTable"),
            }
        ),
        fields={
            "CommittedRange": frozenset({"state_since"}),
            "ReplaceObjects": frozenset({"forgets"}),
        },
        hints={
            "RegisterNode": frozenset({"min_level", "max_level", "tables", "endpoints"}),
            "CommitObjects": frozenset({"wal_position"}),
            "TableProgress": frozenset({"problem"}),
        },
        columns={
            "cluster": frozenset({"features_epoch", "node_secret"}),
            "features": frozenset({"name", "level"}),
            "delegation_tokens": frozenset({"name", "document"}),
            "nodes": frozenset(
                {
                    "min_level",
                    "max_level",
                    "tables",
                    "endpoints",
                    "log_id",
                    "log_epoch",
                    "log_position",
                    "lost_log_id",
                    "lost_log_epoch",
                    "lost_log_ms",
                    "lost_log_streams",
                }
            ),
            "tables": frozenset({"problem", "requester", "requested_until_ms"}),
        },
    ),
}


def level_after(level: int, records: Iterable[Record]) -> int:
    """Return the level in force after records that are committed at `level`."""
    raised = [r.level for r in records if isinstance(r, FeatureLevel) and r.is_metadata_version]
    return raised[-1] if raised else level


def fitted(records: Iterable[Record], level: int) -> tuple[Record, ...]:
    """Return records as they are written at `level`: without the hints of later ones.

    Raises FeatureNotEnabled for a record, or a field of one, that a later level brought.
    """
    if level >= NEWEST_LEVEL:
        return tuple(records)
    later = [(number, brought) for number, brought in ADDITIONS.items() if number > level]
    return tuple(_fitted(record, level, later) for record in records)


_Later = list[tuple[int, Additions]]


def _fitted(value: V, level: int, later: _Later) -> V:
    if isinstance(value, tuple):
        items = tuple(_fitted(item, level, later) for item in value)
        is_same = all(item is before for item, before in zip(items, value, strict=True))
        return value if is_same else items  # type: ignore[return-value]
    if not isinstance(value, msgspec.Struct):
        return value
    name = type(value).__name__
    for number, brought in later:
        if name in brought.records:
            raise FeatureNotEnabled(name, number, level)
    changes: dict[str, Any] = {}
    for one in msgspec.structs.fields(value):
        found = getattr(value, one.name)
        fits = _fitted_field(name, one, found, level, later)
        if fits is not found:
            changes[one.name] = fits
    return msgspec.structs.replace(value, **changes) if changes else value


def _fitted_field(
    name: str, one: msgspec.structs.FieldInfo, found: Any, level: int, later: _Later
) -> Any:
    for number, brought in later:
        is_hint = one.name in brought.hints.get(name, ())
        if not is_hint and one.name not in brought.fields.get(name, ()):
            continue
        is_set = one.default_factory is msgspec.NODEFAULT
        default = one.default if is_set else one.default_factory()
        if is_hint or found == default:
            return default
        raise FeatureNotEnabled(f"{name}.{one.name}", number, level)
    return _fitted(found, level, later)


def columns_at(tables: Mapping[str, Columns], level: int) -> dict[str, Columns]:
    """Return a checkpoint's tables as they are written at `level`: without later columns."""
    hidden = {
        (table, column)
        for number, brought in ADDITIONS.items()
        for table, columns in brought.columns.items()
        for column in columns
        if number > max(level, BASE_LEVEL)
    }
    kept = {
        table: {name: column for name, column in columns.items() if (table, name) not in hidden}
        for table, columns in tables.items()
    }
    return {table: columns for table, columns in kept.items() if columns}
