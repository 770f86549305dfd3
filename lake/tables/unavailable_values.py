"""Values that Debezium writes for columns that it was not given: PostgreSQL's TOAST columns that an
update leaves as they are, if the table's replica identity does not include them.

Debezium writes its placeholder (`unavailable.value.placeholder`) as the column's type has it: a
text (also of JSON and XML, and in base64 or hexadecimal digits for bytes as text), the bytes of it,
an array of one such text, bytes or UUID made from it, an array of its bytes as numbers, or a map
with it as key and value. A change row names such columns in `KEPT`: the row keeps what it had there
before the change.

Of several changes of a key, each column has the last value that is known. A delete makes all of
them known, as null.
"""

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PLACEHOLDER = "__debezium_unavailable_value"

KEPT = "_kept"
"""The column of change rows with the names of the columns that a row keeps; null for none."""
KEPT_FIELD = pa.field(KEPT, pa.list_(pa.string()))


class Place(NamedTuple):
    """An offset, and the timestamp of a record (microseconds)."""

    offset: int
    timestamp_us: int


class Lookup(Protocol):
    """Returns the rows that a table has of some keys (a table of the key columns): the key columns,
    and the columns that are named. Rows that have neither a later timestamp than `beyond` nor its
    offset or a higher one may be left out.
    """

    def __call__(self, keys: Any, columns: Sequence[str], *, beyond: Place | None = None) -> Any:
        """Return the rows."""


_BYTES = PLACEHOLDER.encode()
_TEXTS = (
    PLACEHOLDER,
    base64.b64encode(_BYTES).decode(),
    base64.urlsafe_b64encode(_BYTES).decode(),
    _BYTES.hex(),
    json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
)
# As Java's UUID.nameUUIDFromBytes has it: MD5 of the bytes alone, without a name space.
_UUID = str(uuid.UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3))


def unavailable(column: Any) -> npt.NDArray[np.bool_] | None:
    """Return which values of an Arrow column are placeholders; None if none is."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) and pa.types.is_string(kind.item_type)):
            return None
        found = pc.equal(pc.map_lookup(column, pa.scalar(PLACEHOLDER), "first"), PLACEHOLDER)
        return _mask(found)
    if pa.types.is_list(kind):
        return _unavailable_lists(column)
    if (placeholders := _placeholders(kind, _TEXTS)) is None:
        return None
    return _mask(pc.is_in(column, placeholders))


def _placeholders(kind: Any, texts: Sequence[str]) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array(texts, kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([_BYTES], kind)
    return None


def _unavailable_lists(column: Any) -> npt.NDArray[np.bool_] | None:
    inner = column.type.value_type
    firsts: Any
    if pa.types.is_integer(inner) and inner.bit_width > 8:
        length, firsts = len(_BYTES), pa.array([_BYTES[0]], inner)
    else:
        length, firsts = 1, _placeholders(inner, (*_TEXTS, _UUID))
    if firsts is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    rows = np.flatnonzero(np.asarray(pc.equal(lengths, length)))
    if not len(rows):
        return None
    begin = pc.is_in(pc.list_element(column.take(pa.array(rows)), 0), firsts)
    rows = rows[np.asarray(begin)]
    if length > 1:
        values = column.take(pa.array(rows)).to_pylist()
        rows = rows[[value == list(_BYTES) for value in values]] if len(rows) else rows
    if not len(rows):
        return None
    found = np.zeros(len(column), np.bool_)
    found[rows] = True
    return found


def _mask(found: Any) -> npt.NDArray[np.bool_] | None:
    mask = np.asarray(pc.fill_null(found, fill_value=False), np.bool_)
    return mask if mask.any() else None


def kept_columns(
    columns: Mapping[str, Any], names: Sequence[str], is_put: npt.NDArray[np.bool_]
) -> tuple[dict[str, Any], Any]:
    """Return the columns with null in place of placeholders, and the column `KEPT` of rows that
    put values (`is_put`). `names` are the columns that values have.
    """
    made, masks = dict(columns), {}
    for name in names:
        if (mask := unavailable(columns[name])) is None:
            continue
        column = columns[name]
        made[name] = pc.if_else(pa.array(~mask), column, pa.scalar(None, column.type))
        masks[name] = mask & is_put
    return made, _kept(masks, len(is_put))


def _kept(masks: Mapping[str, npt.NDArray[np.bool_]], count: int) -> Any:
    """Return the column `KEPT` of rows that keep the columns of these masks."""
    lengths = np.zeros(count, np.int32)
    for mask in masks.values():
        lengths += mask
    if not lengths.any():
        return pa.nulls(count, KEPT_FIELD.type)
    rows = np.concatenate([np.flatnonzero(mask) for mask in masks.values()])
    names = np.concatenate(
        [np.full(int(mask.sum()), number) for number, mask in enumerate(masks.values())]
    )
    texts = pa.array(list(masks), pa.string()).take(
        pa.array(names[np.argsort(rows, kind="stable")], pa.int32())
    )
    offsets = pa.array(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        mask=np.concatenate([lengths == 0, [False]]),
    )
    return pa.ListArray.from_arrays(offsets, texts)


def _masks(changes: Any) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which change rows keep which columns."""
    kept = changes.column(KEPT).combine_chunks()
    if kept.null_count == len(kept):
        return {}
    rows = np.asarray(pc.list_parent_indices(kept))
    names = pc.list_flatten(kept)
    found = {}
    for name in pc.unique(names).to_pylist():
        mask = np.zeros(len(kept), np.bool_)
        mask[rows[np.asarray(pc.equal(names, name))]] = True
        found[name] = mask
    return found


def kept_count(changes: Any) -> int:
    """Return how many change rows keep columns of the rows before them."""
    column = changes.column(KEPT)
    return len(column) - int(column.null_count)


def has_kept(changes: Any) -> bool:
    """Return whether some change rows keep columns of the rows before them."""
    return kept_count(changes) > 0


def folded(changes: Any, codes: npt.NDArray[np.int64], is_delete: npt.NDArray[np.bool_]) -> Any:
    """Return change rows in which columns that are kept have the last known value of the changes
    before them. Rows are in the order of `codes`, numbers of their keys, and of those in the order
    of changes; `is_delete` are rows after which all columns are null.
    """
    masks = _masks(changes)
    if not masks:
        return changes
    count = len(codes)
    places = np.arange(count)
    begins = np.ones(count, np.bool_)
    begins[1:] = codes[1:] != codes[:-1]
    starts = np.maximum.accumulate(np.where(begins, places, 0))
    left = {}
    for name, mask in masks.items():
        last = np.maximum.accumulate(np.where(mask, -1, places))
        is_known = last >= starts
        is_null = ~is_known | (mask & is_delete[np.maximum(last, 0)])
        number = changes.schema.get_field_index(name)
        column = changes.column(name).combine_chunks()
        column = column.take(pa.array(np.where(is_null, 0, last), mask=is_null))
        changes = changes.set_column(number, changes.schema.field(number), column)
        left[name] = mask & ~is_known
    number = changes.schema.get_field_index(KEPT)
    return changes.set_column(number, KEPT_FIELD, _kept(left, count))


def filled(changes: Any, names: Sequence[str], lookup: Lookup) -> Any:
    """Return change rows in which columns that are kept have the value of the table's row of the
    same key (`names`), null if there is no such row.
    """
    masks = _masks(changes)
    if not masks:
        return changes
    rows = np.flatnonzero(np.logical_or.reduce(list(masks.values())))
    wanted = changes.select(list(names)).take(pa.array(rows))
    held = lookup(wanted, list(masks))
    pairs = wanted.append_column("_change", pa.array(rows)).join(
        held.select(list(names))
        .cast(wanted.schema)
        .append_column("_held", pa.array(np.arange(held.num_rows))),
        list(names),
        join_type="inner",
    )
    place = np.full(changes.num_rows, -1)
    place[np.asarray(pairs.column("_change"))] = np.asarray(pairs.column("_held"))
    for name, mask in masks.items():
        number = changes.schema.get_field_index(name)
        field, column = changes.schema.field(number), changes.column(number).combine_chunks()
        both = pa.concat_arrays([column, held.column(name).cast(field.type).combine_chunks()])
        taken = np.where(mask, len(column) + place, np.arange(len(column)))
        values = both.take(pa.array(taken, mask=mask & (place < 0)))
        changes = changes.set_column(number, field, values)
    number = changes.schema.get_field_index(KEPT)
    return changes.set_column(number, KEPT_FIELD, pa.nulls(changes.num_rows, KEPT_FIELD.type))
