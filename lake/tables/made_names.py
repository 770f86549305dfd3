"""Records with a field that has the name of a column which the table makes itself.

Such a field can be no column. Its record is a fault by itself; its neighbours are not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.tables.values.decoder import Decoded
from lake.tables.values.groups import int64_array

Decode = Callable[[Any, Any], Decoded]
"""Decodes a batch to a schema."""


def names_of_made(found: Any, made: set[str]) -> list[str]:
    """Return the fields of a schema (None: no schema) that have one of the names `made`, in any
    case of letters.
    """
    return [] if found is None else [name for name in found.names if name.lower() in made]


def without_made(schema: Any, made: set[str]) -> Any:
    """Return the schema without the fields that have one of the names `made`."""
    return pa.schema([field for field in schema if field.name.lower() not in made])


def set_made_aside(
    batch: Any, decode: Decode, schema: Any, made: set[str]
) -> tuple[Mapping[int, str], Any]:
    """Return the records of a batch that have a field with one of the names `made`, and its name;
    and what the others have beside `schema` (see `Decoded.found`), to which values are decoded.

    Records with a value there are found together, a type of the field at a time; those whose field
    is null by halving.
    """
    rows: dict[int, str] = {}
    left = np.arange(batch.num_rows)
    while True:
        some = batch.take(int64_array(left))
        found = decode(some, schema).found
        names = names_of_made(found, made)
        if not names:
            return rows, found
        wide = decode(some, pa.schema([*schema, *(found.field(name) for name in names)]))
        held = np.full(len(left), -1)
        for number, name in reversed(list(enumerate(names))):
            is_set = pc.is_valid(wide.columns.column(name)).to_numpy()
            held[wide.rows.to_numpy()[is_set]] = number
        if not (held >= 0).any():
            names_of = dict(_halved(some, decode, schema, made, names, 0))
        else:
            names_of = {row: names[held[row]] for row in np.flatnonzero(held >= 0).tolist()}
        rows |= {int(left[row]): name for row, name in names_of.items()}
        left = np.delete(left, list(names_of))


def _halved(
    batch: Any, decode: Decode, schema: Any, made: set[str], names: Sequence[str], start: int
) -> Sequence[tuple[int, str]]:
    """The records of a batch that has some, and the first of `names`, which the batch has."""
    if batch.num_rows == 1:
        return [(start, names[0])]
    middle = batch.num_rows // 2
    rows: list[tuple[int, str]] = []
    for at, half in ((start, batch.slice(0, middle)), (start + middle, batch.slice(middle))):
        held = names_of_made(decode(half, schema).found, made)
        if held:
            rows += _halved(half, decode, schema, made, held, at)
    return rows
