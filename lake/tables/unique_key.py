"""The unique key of a table's rows: the record (`mode=append`), or columns or the record's key
(`mode=upsert`).

The table records it when it is made, or rebuilt, as a `txn` action of one name for all tables
(`lakehead:unique-key`), with a number made from mode and columns. A table by upsert over rows of
another key would have several rows of one key for good: a MERGE replaces the rows that it finds.

A table that was made before this was recorded is not checked.
"""

import hashlib
import json
from collections.abc import Sequence

from lakehead.lake.declaration.table_declaration import TableMode
from lakehead.lake.tables.delta_table import NOTHING, Table
from lakehead.storage.errors import SettingsError

UNIQUE_KEY = "lakehead:unique-key"
"""The name under which a table records the unique key of its rows."""


def unique_key_txn(mode: TableMode, keys: Sequence[str]) -> dict[str, int]:
    """Return what a commit sets for a table to have this unique key."""
    digest = hashlib.sha256(json.dumps([mode, *sorted(keys)]).encode()).digest()
    return {UNIQUE_KEY: int.from_bytes(digest[:8]) >> 1}


def check_unique_key(table: Table, mode: TableMode, keys: Sequence[str]) -> None:
    """Raise SettingsError for a table whose rows have another unique key. Raises also what reading
    the table's log raises.
    """
    noted = table.txn_version(UNIQUE_KEY)
    if noted not in {NOTHING, unique_key_txn(mode, keys)[UNIQUE_KEY]}:
        declared = f"lakehead.table.mode={mode}"
        declared += f" with lakehead.table.keys={','.join(keys)}" if keys else ""
        raise SettingsError(
            f"{table.uri} was made with another lakehead.table.mode or other lakehead.table.keys, "
            f"so its rows are not those of {declared}: declare it as before, or rebuild it with: "
            "lakehead rebuild-table"
        )
