"""Records that are no rows for the fields which they have: found by what each has alone.

A batch is decoded twice at the most, however many of its records are set aside: the others are
decoded without them, so that nothing of what they have is hidden.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lakehead.lake.tables.values.decoder import Decoded, Fault
from lakehead.lake.tables.values.evolution import evolve
from lakehead.lake.tables.values.groups import int64_array, placed

Decode = Callable[[Any], Decoded]
"""Decodes a batch."""


def reasons_by_row(decoded: Decoded, reason_of: Callable[[Any], str]) -> Mapping[int, str]:
    """Return why records of a batch cannot be rows, by row; `reason_of` says it of a schema that a
    value has (empty: it can be one).
    """
    reasons: dict[int, str] = {}
    known: dict[int, str] = {}  # by schema: values of one have the same object
    for row, found in decoded.found_by_row().items():
        if (reason := known.get(id(found))) is None:
            reason = known[id(found)] = reason_of(found)
        if reason:
            reasons[row] = reason
    return reasons


def set_aside(batch: Any, reasons: Mapping[int, str], decode: Decode) -> Decoded:
    """Return what a batch is decoded to with some of its records as faults."""
    left = np.delete(np.arange(batch.num_rows), list(reasons))
    others = placed(decode(batch.take(int64_array(left))), left)
    faults = [Fault(row=row, reason=reason, error="misfit") for row, reason in reasons.items()]
    return replace(
        others, faults=tuple(sorted((*faults, *others.faults), key=lambda fault: fault.row))
    )


def words_on_new_schema(schema: Any, found: Any) -> str:
    """Say what a value of the schema `found` has beside `schema`."""
    change = evolve(schema, found)
    if change.added:
        return f"fields that the table does not have: {', '.join(change.added)}"
    if change.widened:
        return f"columns that would be wider: {', '.join(map(str, change.widened))}"
    return "; ".join(map(str, change.conflicts))
