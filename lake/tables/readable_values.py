"""Keys and values of records as JSON text for people, each with all of its fields.

A table's columns are not considered here: each value is decoded by the schema that its writer used.
A value that cannot be decoded has a reason, and its neighbours are decoded all the same.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.decoder import UnusableSchema, ValueDecoder, ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.framing import FRAME_BYTES, places, schema_ids
from lakehead.lake.tables.values.groups import by_value
from lakehead.storage.errors import SettingsError

FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf"}
"""Value formats by the registry's word for a schema, of those whose values are not JSON already."""
_DECODERS_MAX = 256
_DECLARED = "declared schema"


class ReadableValue(NamedTuple):
    """A value as JSON text without blanks; None: it is shown as it is. `schema` describes the
    schema that it was decoded by, `fault` is the reason that it was not.
    """

    text: str | None = None
    schema: str = ""
    fault: str = ""


AS_IT_IS = ReadableValue()
MayRead = Callable[[int], bool]
"""Returns true if the viewer may read the schema of an id."""


class ReadableValues:
    """Decodes values of topics. Decoders are kept, with the schemas that they have compiled."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[ValueSpec, int], ValueDecoder] = {}

    def by_declaration(
        self, values: Sequence[bytes | None], spec: ValueSpec
    ) -> list[ReadableValue]:
        """Decode values by the schema that a topic declares for all of them. Raises SettingsError
        for one that cannot be used.
        """
        decoder = self._decoder(spec, -1)
        made = iter(_decoded(decoder, [one for one in values if one is not None], _DECLARED))
        return [AS_IT_IS if one is None else next(made) for one in values]

    def by_registry(
        self,
        values: Sequence[bytes | None],
        registry: SchemaRegistry,
        url: str,
        *,
        is_declared: bool,
        may_read: MayRead,
    ) -> list[ReadableValue]:
        """Decode values by the schema whose id each has in front (Confluent's wire format). If that
        form `is_declared`, a value without a known id has a fault; else it is shown as it is.

        Raises RegistryUnavailable.
        """
        found = [AS_IT_IS] * len(values)
        ids = schema_ids(places(pa.array(values, pa.binary())))
        present = np.array([n for n, one in enumerate(values) if one is not None], np.int64)
        for schema_id, rows in by_value(ids, present):
            some = [values[row] or b"" for row in rows]
            registered = None if schema_id < 0 else registry.schema(int(schema_id))
            if registered is None:
                reason = (
                    "the value has no schema id in front"
                    if schema_id < 0
                    else f"the registry has no schema {schema_id}"
                )
                made = [ReadableValue(fault=reason) if is_declared else AS_IT_IS] * len(some)
            elif not may_read(registered.schema_id):
                reason = f"the roles of the registry do not let you read schema {schema_id}"
                made = [ReadableValue(fault=reason)] * len(some)
            else:
                made = self._by_schema(some, registered, url)
            for row, one in zip(rows, made, strict=True):
                found[row] = one
        return found

    def _by_schema(
        self, values: Sequence[bytes], schema: RegisteredSchema, url: str
    ) -> list[ReadableValue]:
        words = f"{schema.kind} schema {schema.schema_id}"
        if schema.kind == "JSON":
            return [_json(value[FRAME_BYTES:], words) for value in values]
        value_format = FORMATS.get(schema.kind)
        if value_format is None:
            return [ReadableValue(fault=f"{words} is of a kind without a decoder")] * len(values)
        spec = ValueSpec(value_format=value_format, registry=url)  # type: ignore[arg-type]
        return _decoded(self._decoder(spec, schema.schema_id), values, words)

    def _decoder(self, spec: ValueSpec, schema_id: int) -> ValueDecoder:
        key = spec, schema_id
        if key not in self._decoders:
            if len(self._decoders) >= _DECODERS_MAX:
                self._decoders.clear()
            self._decoders[key] = open_decoder(spec)
        return self._decoders[key]


def _decoded(decoder: ValueDecoder, values: Sequence[bytes], words: str) -> list[ReadableValue]:
    """Decode values of one schema. If they cannot be decoded together, each is decoded alone."""
    if not values:
        return []
    count = len(values)
    batch = pa.record_batch(
        {"key": pa.nulls(count, pa.binary()), "value": pa.array(values, pa.binary())}
    )
    found = [ReadableValue(fault="it cannot be decoded")] * count
    try:
        decoded = decoder.decode(batch, decoder.schema_of(batch))
        rows = decoded.columns.to_pylist(maps_as_pydicts="lossy")
        for row, fields in zip(decoded.rows.to_pylist(), rows, strict=True):
            found[row] = ReadableValue(text=as_json(fields), schema=words)
    except (SettingsError, UnusableSchema, pa.ArrowException, ValueError, OverflowError) as error:
        if count == 1:
            return [ReadableValue(fault=" ".join(str(error).split())[:500])]
        return [one for value in values for one in _decoded(decoder, [value], words)]
    for fault in decoded.faults:
        found[fault.row] = ReadableValue(fault=f"{fault.error}: {fault.reason}")
    return found


def _json(value: bytes, words: str) -> ReadableValue:
    try:
        return ReadableValue(text=as_json(json.loads(value)), schema=words)
    except (ValueError, RecursionError):
        return ReadableValue(fault="malformed: it is not JSON")


def as_json(value: Any) -> str:
    """Return a value of Arrow's as JSON text without blanks. JSON has no times, decimals, bytes
    and infinities: they are text (ISO 8601, digits, hexadecimal, as Python has them).
    """
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date):  # a datetime, too
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
