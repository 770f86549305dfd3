"""The fan-out of a topic into tables by a field of its values: which records are of a table.

A record belongs to the table that names the text of the field among its values, else to the table
that names none. So each record is of one table. If every table names values, the records of no
table are faults in the first one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lakehead.lake.tables.values.decoder import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The records of one table among several. `field` is a field of JSON values, with dots before
    one inside of others; `values` are those of all tables in order, none for the table that takes
    the rest; `number` is the place of this table among them.
    """

    field: str
    values: tuple[tuple[str, ...], ...]
    number: int

    def own(self, batch: Any) -> tuple[npt.NDArray[np.int64], tuple[Fault, ...]]:
        """Return the rows of a batch of records that are of this table, and the faults of those
        that are of no table.
        """
        read = _reader(self.field)
        rest = self.values.index(()) if () in self.values else -1
        numbers = {text: number for number, some in enumerate(self.values) for text in some}
        found = np.fromiter(
            (numbers.get(read(value), rest) for value in batch.column("value").to_pylist()),
            np.int64,
            batch.num_rows,
        )
        faults: tuple[Fault, ...] = ()
        if self.number == 0 and rest < 0:
            reason = f"field {self.field}: its value is of none of the topic's tables"
            faults = tuple(
                Fault(row=row, reason=reason, error="unrouted")
                for row in np.flatnonzero(found < 0).tolist()
            )
        return np.flatnonzero(found == self.number), faults


@cache
def _reader(field: str) -> Callable[[bytes | None], str]:
    """Return a function that reads the text of a field of a JSON value: empty if it is missing, or
    holds other values. The rest of a value is passed over.
    """
    names = field.split(".")
    kind: Any = str | int | bool | None
    for name in reversed(names):
        kind = msgspec.defstruct("Value", [("inner", kind, None)], rename={"inner": name})
        kind |= None
    decoder = msgspec.json.Decoder(kind)

    def read(value: bytes | None) -> str:
        if value is None:
            return ""
        try:
            found: Any = decoder.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return ""
        for _ in names:
            if found is None:
                return ""
            found = found.inner
        if isinstance(found, bool):
            return "true" if found else "false"
        return "" if found is None else str(found)

    return read
