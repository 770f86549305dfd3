"""Decoding alone: the same orders of ten fields in each format of values, bytes to Arrow columns.

One thread, CPU seconds, from an Arrow batch of values as a scan gives it; the first run, which may
compile kernels, does not count.
"""

import io
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.lake._topics import orders

PART = "values"
ROUNDS = 7
GOALS = {"json": 150.0}

DDL = (
    "order_id BIGINT, customer_id BIGINT, placed_at TIMESTAMP, city STRING, amount DOUBLE, "
    "quantity BIGINT, is_paid BOOLEAN, discount DOUBLE, sku STRING, comment STRING"
)
_TYPES = {
    "order_id": ("long", "int64"),
    "customer_id": ("int", "int32"),
    "placed_at": ("string", "string"),
    "city": ("string", "string"),
    "amount": ("double", "double"),
    "quantity": ("int", "int32"),
    "is_paid": ("boolean", "bool"),
    "discount": (["null", "double"], "double"),
    "sku": ("string", "string"),
    "comment": ("string", "string"),
}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": kinds[0]} for name, kinds in _TYPES.items()],
}
PROTO = (
    'syntax = "proto3"; message Order { '
    + " ".join(
        f"{'optional ' if name == 'discount' else ''}{kinds[1]} {name} = {i};"
        for i, (name, kinds) in enumerate(_TYPES.items(), 1)
    )
    + " }"
)
CONNECT = {"int32": "int32", "int64": "int64", "double": "double", "bool": "boolean"}


def run(_folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in memory."""
    made = orders(5_000 if quick else 50_000)
    figures: list[Figure] = []
    for name, (spec, values) in _topics(made).items():
        seconds = _seconds(spec, values)
        size = sum(map(len, values))
        title = f"{name}, {size // len(values)} B each"
        goal = GOALS.get(name)
        figures += [
            Figure(part=PART, name=title, value=size / seconds / 1e6, unit="MB/s", goal=goal),
            Figure(part=PART, name=title, value=len(values) / seconds / 1e6, unit="M rows/s"),
        ]
    return figures


def _topics(made: Sequence[bytes]) -> Mapping[str, tuple[Any, Sequence[bytes]]]:
    """The same orders in each format, with its declaration."""
    from lakehead.lake.tables.values.decoder import ValueSpec

    rows = [json.loads(each) for each in made]
    compact = [_json(row) for row in rows]
    changes = [_change(i, row) for i, row in enumerate(rows)]
    enveloped = [_json({"schema": _connect_schema(), "payload": change}) for change in changes]
    avro = ValueSpec(value_format="avro", schema=json.dumps(AVRO))
    return {
        "json": (ValueSpec(value_format="json", schema=DDL), compact),
        "avro": (avro, _avro(rows)),
        "protobuf": (ValueSpec(value_format="protobuf", schema=PROTO), _protobuf(rows)),
        "debezium": (ValueSpec(value_format="debezium"), [_json(each) for each in changes]),
        "debezium, its schema in each": (ValueSpec(value_format="debezium"), enveloped),
    }


def _seconds(spec: Any, values: Sequence[bytes]) -> float:
    """Median CPU seconds of decoding all values in one batch."""
    import pyarrow as pa

    from lakehead.lake.tables.values.formats import open_decoder

    key = _json({"order_id": 1})
    arrays = [pa.array([key] * len(values), pa.binary()), pa.array(values, pa.binary())]
    batch = pa.RecordBatch.from_arrays(arrays, names=["key", "value"])
    decoder = open_decoder(spec)
    schema = decoder.schema_of(batch.slice(0, 1000))
    taken = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        found = decoder.decode(batch, schema)
        taken.append(time.process_time() - began)
        assert found.faults == (), found.faults[:1]
    return statistics.median(taken[1:])


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _avro(rows: Sequence[Any]) -> list[bytes]:
    import fastavro

    parsed = fastavro.parse_schema(AVRO)
    values = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        values.append(out.getvalue())
    return values


def _protobuf(rows: Sequence[Any]) -> list[bytes]:
    from google.protobuf.message_factory import GetMessageClass

    from lakehead.lake.tables.values.protobuf_schema import compile_proto, message_named

    made = GetMessageClass(message_named(compile_proto(PROTO), "Order"))
    present = ({name: each for name, each in row.items() if each is not None} for row in rows)
    return [made(**row).SerializeToString() for row in present]


def _change(number: int, row: Any) -> Any:
    """Creates, updates and deletes in turn, as Debezium writes those of PostgreSQL."""
    op = "cud"[number % 3]
    return {
        "before": None if op == "c" else row,
        "after": None if op == "d" else row,
        "source": {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": 1_700_000_000_000 + number,
            "snapshot": "false",
            "db": "shop",
            "schema": "public",
            "table": "orders",
            "txId": number,
            "lsn": 1000 + number,
        },
        "op": op,
        "ts_ms": 1_700_000_000_000 + number,
        "transaction": None,
    }


def _connect_schema() -> Any:
    fields = [
        {"type": CONNECT.get(kinds[1], "string"), "optional": True, "field": name}
        for name, kinds in _TYPES.items()
    ]
    image = {"type": "struct", "fields": fields, "optional": True, "name": "shop.orders.Value"}
    return {
        "type": "struct",
        "fields": [{**image, "field": "before"}, {**image, "field": "after"}],
        "optional": False,
        "name": "shop.orders.Envelope",
    }
