"""Debezium's change events: JSON, with the schema in each event or without, or by a registry.

A value is an envelope of `before`, `after`, `op`, `ts_ms` and `source`; the columns are those of
the row inside, with `changes.CHANGE_FIELDS` behind them. A tombstone (a null value, which follows a
delete for the sake of compaction) is no row.
"""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.registry import SchemaRegistry
from lakehead.lake.tables.values.changes import CHANGE_FIELDS, Changes, Events, change_rows
from lakehead.lake.tables.values.decoder import Decoded, Fault, ValueSpec
from lakehead.lake.tables.values.groups import int64_array, placed
from lakehead.storage.errors import SettingsError

_CHANGE_NAMES = frozenset(field.name for field in CHANGE_FIELDS)


class Envelopes(Protocol):
    """Reads envelopes of one encoding."""

    def row_schema(self, batch: pa.RecordBatch) -> Any:
        """The columns of the rows inside."""

    def key_names(self, batch: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the records' keys."""

    def events(self, batch: pa.RecordBatch, schema: Any) -> tuple[Events, Decoded]:
        """The events of the values that are not null, and what became of each value: its rows are
        those of the batch that each event came from.
        """

    def key_images(self, batch: pa.RecordBatch, schema: Any) -> tuple[Any, Any]:
        """Structs of the rows' columns with what keys say, and the row of the batch of each."""


class DebeziumValues:
    """One change event for each value."""

    def __init__(self, spec: ValueSpec, registry: SchemaRegistry | None) -> None:
        self._keys = spec.keys
        if registry is None:
            from lakehead.lake.tables.values.debezium_json import JsonEnvelopes

            self._envelopes: Envelopes = JsonEnvelopes(spec)
        else:
            from lakehead.lake.tables.values.debezium_registered import RegisteredEnvelopes

            self._envelopes = RegisteredEnvelopes(registry)

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the columns of the rows, without those of the changes."""
        schema = self._envelopes.row_schema(batch)
        taken = [field.name for field in schema if field.name in _CHANGE_NAMES]
        if taken:
            raise SettingsError(f"column {taken[0]!r} of the rows has the name of a change's")
        return schema

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - all are looked for
    ) -> Decoded:
        """Return the changes of `batch`: the columns of `schema` and CHANGE_FIELDS (which `schema`
        may name or not).
        """
        rows = pa.schema([field for field in schema if field.name not in _CHANGE_NAMES])
        present = np.flatnonzero(np.asarray(batch.column("value").is_valid()))
        if len(present) < batch.num_rows:
            batch = batch.take(int64_array(present))
        events, parsed = self._envelopes.events(batch, rows)
        keys = self._keys or self._envelopes.key_names(batch)
        keys = tuple(name for name in keys if name in rows.names)
        at = np.asarray(parsed.rows, np.int64)
        changes = change_rows(events, keys, self._images(batch, rows, events, at))
        parsed = placed(parsed, present)
        origins = present[at]
        faults = [*parsed.faults, *_misfits(changes, origins)]
        return replace(
            parsed,
            columns=changes.columns,
            rows=int64_array(origins[changes.events]),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
        )

    def _images(self, batch: pa.RecordBatch, schema: Any, events: Events, at: Any) -> Any:
        """What keys say of the rows of deletes that come without the row before them."""
        kind = pa.struct(list(schema))
        deleted = pc.fill_null(pc.equal(events.op, "d"), fill_value=False)
        wanted = np.asarray(pc.and_(deleted, events.before.is_null()), np.bool_)
        needed = np.flatnonzero(wanted)
        if not len(needed):
            return pa.nulls(len(at), kind)
        images, found = self._envelopes.key_images(batch.take(int64_array(at[needed])), schema)
        position = np.full(len(at), -1, np.int64)
        position[needed[np.asarray(found, np.int64)]] = np.arange(len(images))
        places = int64_array(position)
        return images.take(pc.if_else(pc.less(places, 0), pa.scalar(None, pa.int64()), places))


def _misfits(changes: Changes, rows: Any) -> list[Fault]:
    return [
        Fault(row=int(rows[event]), reason=reason, error="misfit")
        for event, reason in changes.faults
    ]
