"""The unique key of a table's rows: the record (`mode=append`), or columns or the record's key
(`mode=upsert`).

The table records it when it is made, or rebuilt, as a `txn` action of one name for all tables
(`lakehead:unique-key`), with a number made from mode and columns. A table by upsert over rows of
another key would have several rows of one key for good: a MERGE replaces the rows that it finds.

A table that was made before this was recorded gets the record by its next run, if its rows are as
the declaration says: by upsert, no two of them (with history: current ones) have one key; by
append, no commit of records that the log still has was a MERGE. Else the table is refused.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lakehead.lake.declaration.table_declaration import TableMode
from lakehead.lake.tables.delta_table import NOTHING, Table, applications
from lakehead.lake.tables.table_history import change_of, entries_since
from lakehead.lake.tables.upsert import HISTORY_FIELDS, identity
from lakehead.storage.errors import SettingsError

UNIQUE_KEY = "lakehead:unique-key"
"""The name under which a table records the unique key of its rows."""


def unique_key_txn(mode: TableMode, keys: Sequence[str]) -> dict[str, int]:
    """Return what a commit sets for a table to have this unique key."""
    digest = hashlib.sha256(json.dumps([mode, *sorted(keys)]).encode()).digest()
    return {UNIQUE_KEY: int.from_bytes(digest[:8]) >> 1}


def check_unique_key(table: Table, mode: TableMode, keys: Sequence[str]) -> None:
    """Raise SettingsError for a table whose rows have another unique key. Raises also what reading
    the table's log raises, and for a table that records none, its rows.
    """
    noted = table.txn_version(UNIQUE_KEY)
    if noted == NOTHING:
        is_own = not (_has_twice(table, keys) if mode == "upsert" else _was_merged(table))
    else:
        is_own = noted == unique_key_txn(mode, keys)[UNIQUE_KEY]
    if not is_own:
        declared = f"lakehead.table.mode={mode}"
        declared += f" with lakehead.table.keys={','.join(keys)}" if keys else ""
        raise SettingsError(
            f"{table.uri} was made with another lakehead.table.mode or other lakehead.table.keys, "
            f"so its rows are not those of {declared}: declare it as before, or rebuild it with: "
            "lakehead rebuild-table"
        )


def _was_merged(table: Table) -> bool:
    if any(app.endswith(":merge-planned") for app in applications(table.uri)):
        return True
    merges = (one for one in entries_since(table, -1) if one.get("operation") == "MERGE")
    return any(change_of(one) is not None for one in merges)  # not of another engine's user


_ROWS_AT_ONCE = 1 << 20
_IS_CURRENT = HISTORY_FIELDS[-1].name


def _has_twice(table: Table, keys: Sequence[str]) -> bool:
    """Return whether two rows have one key, by eight bytes for each row in memory."""
    names = identity(keys)
    if not set(names) <= set(table.schema.names):
        return True
    found = np.sort(np.concatenate([np.empty(0, np.int64), *map(_hashes, _keys(table, names))]))
    twice = np.unique(found[1:][found[1:] == found[:-1]])
    if not len(twice):
        return False
    seen = set()
    for some in _keys(table, names):
        for place in np.flatnonzero(np.isin(_hashes(some), twice)).tolist():
            if some[place] in seen:
                return True
            seen.add(some[place])
    return False


def _keys(table: Table, names: Sequence[str]) -> Iterator[list[tuple[object, ...]]]:
    """Yield the keys of the rows, or of current ones, some at a time."""
    current = [_IS_CURRENT] if _IS_CURRENT in table.schema.names else []
    for rows in table.batches(_ROWS_AT_ONCE, [*names, *current]):
        some = rows.filter(rows.column(_IS_CURRENT)) if current else rows
        yield list(zip(*(some.column(name).to_pylist() for name in names), strict=True))


def _hashes(keys: Iterable[tuple[object, ...]]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, keys), np.int64)
