"""Payloads with their schema beside them, or bare, as Kafka Connect's JSON converter writes them.

With `schemas.enable` each value is `{"schema": ..., "payload": ...}`. The schema is by far the
longer part and the same in row after row, so it is read once for all values that begin alike.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.values.framing import Values, places
from lakehead.lake.tables.values.payload_kernel import payloads_behind, wrapped

_HEADS_MAX = 32
_MEMBER = re.compile(r'[ \t\n\r]*[{,][ \t\n\r]*"([^"\\]*)"[ \t\n\r]*:[ \t\n\r]*')


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Payloads that have the same schema beside them (None: none), and the row of each.

    `schema_text` tells schemas apart.
    """

    rows: Any  # int64, ascending
    values: Values
    schema: Any
    schema_text: str = ""


def split_payloads(values: Values) -> Iterator[Payloads]:
    """Yield the values that are not null, taken out of the objects around them, by schema."""
    present = np.flatnonzero(values.starts >= 0)
    starts, ends = values.starts[present], values.ends[present]
    is_wrapped = wrapped(values.data, starts, ends) != 0
    bare = [present[~is_wrapped]]
    left = present[is_wrapped]
    singles: dict[str, tuple[list[int], list[bytes]]] = {}
    heads = 0
    while len(left):
        first = int(left[0])
        value = values.data[values.starts[first] : values.ends[first]].tobytes()
        found = _taken_apart(value)
        if found is None:
            bare.append(left[:1])
            left = left[1:]
            continue
        schema_text, payload, head = found
        if head is None or heads == _HEADS_MAX:
            rows, payloads = singles.setdefault(schema_text, ([], []))
            rows.append(first)
            payloads.append(payload)
            left = left[1:]
            continue
        heads += 1
        places_of = payloads_behind(values.data, values.starts[left], values.ends[left], head)
        behind = places_of[0] >= 0
        yield Payloads(
            rows=left[behind],
            values=Values(data=values.data, starts=places_of[0][behind], ends=places_of[1][behind]),
            schema=json.loads(schema_text),
            schema_text=schema_text,
        )
        left = left[~behind]
    for schema_text, (rows, payloads) in singles.items():
        yield Payloads(
            rows=np.array(rows, np.int64),
            values=places(pa.array(payloads, pa.binary())),
            schema=json.loads(schema_text),
            schema_text=schema_text,
        )
    rest = np.sort(np.concatenate(bare))
    if len(rest):
        taken = Values(data=values.data, starts=values.starts[rest], ends=values.ends[rest])
        yield Payloads(rows=rest, values=taken, schema=None)


def _taken_apart(value: bytes) -> tuple[str, bytes, bytes | None] | None:
    """Schema, payload, and what stands before the payload if that comes last; None for a value
    that is no payload with its schema.
    """
    decoder = json.JSONDecoder()
    spans: dict[str, tuple[int, int]] = {}
    try:
        text = value.decode("utf-8")
        at = 0
        while (member := _MEMBER.match(text, at)) is not None:
            if member[1] in spans or len(spans) == 2:
                return None
            _, at = decoder.raw_decode(text, member.end())
            spans[member[1]] = (member.end(), at)
    except (ValueError, RecursionError):
        return None
    if spans.keys() != {"schema", "payload"} or text[at:].strip(" \t\n\r") != "}":
        return None
    start, end = spans["payload"]
    schema_text = text[slice(*spans["schema"])]
    head = text[:start].encode() if end == at else None
    return schema_text, text[start:end].encode(), head
