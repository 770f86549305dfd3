"""What a Delta table's log says of its files, statistics and all, read as the JSON that it is.

Delta-rs tells statistics only as typed columns. Entries are read from the first to the newest, so
this is for tables that this package made and nobody else keeps: one that was made for a rebuild.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.data_file import DataFile
from lakehead.lake.tables.delta_table import NOTHING, open_table
from lakehead.lake.tables.table_root import LOG, OWN_ROOT, is_data_file, names_below, refuse_others
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint

_CHECKPOINT = re.compile(r"_delta_log/(\d{20})\.checkpoint\.(?:\d{10}\.\d{10}\.)?parquet")
_FIRST = f"{LOG}{0:020}.json"


def current_files(uri: str) -> list[DataFile]:
    """Return the data files of the newest version. Raises what reading objects raises."""
    files: dict[str, DataFile] = {}
    for action in _actions(uri):
        if (added := action.get("add")) is not None:
            statistics = added["stats"]
            files[added["path"]] = DataFile(
                path=unquote(added["path"]),  # a URI there, a key here
                size_bytes=added["size"],
                record_count=msgspec.json.decode(statistics)["numRecords"],
                statistics=statistics,
                partition=tuple(added["partitionValues"].items()),
            )
        elif (removed := action.get("remove")) is not None:
            files.pop(removed["path"], None)
    return list(files.values())


def applications(uri: str) -> set[str]:
    """Return the names of all `txn` actions that a table's log has: those of its newest checkpoint
    and of all entries that are left. Raises what reading objects raises.
    """
    reader = store_reader(uri)
    keys = [listed.key for listed in reader.run(reader.store.list(LOG))]
    matches = [match for key in keys if (match := _CHECKPOINT.fullmatch(key)) is not None]
    newest = max((match[1] for match in matches), default=None)
    names = {action["txn"]["appId"] for action in _actions(uri) if action.get("txn")}
    for match in matches:
        if match[1] == newest:
            data = pa.BufferReader(reader.run(reader.store.get(match[0])))
            rows = pq.read_table(data, columns=["txn"]).column("txn").to_pylist()
            names |= {row["appId"] for row in rows if row is not None}
    return names


def _actions(uri: str) -> Iterator[dict[str, Any]]:
    reader = store_reader(uri)
    for listed in reader.run(reader.store.list(LOG)):
        if listed.key.endswith(".json"):
            for line in reader.run(reader.store.get(listed.key)).splitlines():
                yield msgspec.json.decode(line)


def delete_table(uri: str, *, name: str) -> None:
    """Delete the table of that name, as which it was created without rows in a root of its own: its
    log and its data files; nothing where there is no table. Killed on the way, it leaves a table of
    before.

    Raises SettingsError, and deletes nothing, for a table of another name and where other files lie
    below its root; TableUnavailable.
    """
    table = open_table(uri)
    if table is None:
        return
    if table.name != name or table.marked(OWN_ROOT) == NOTHING:
        raise SettingsError(
            f"{uri} is in the way, a table of the name {table.name!r} that was not made for this: "
            "move it away, or name another place for the other one (lakehead.table.path)"
        )
    names = names_below(uri)
    advice = "these files are in the way of a rebuild: move them away"
    refuse_others(uri, (one for one in names if not is_data_file(one)), advice)
    reader = store_reader(uri)
    log = sorted((one for one in names if one.startswith(LOG) and one != _FIRST), reverse=True)
    # The newest entry first, one by one: what is left is the log of an older version. The first
    # entry, of a table without rows, says until the end what all of this is.
    for one in log:
        reader.run(reader.store.delete([one]))
        failpoint("delta_log_entry_deleted")
    if files := [one for one in names if not one.startswith(LOG)]:
        reader.run(reader.store.delete(files))
    failpoint("delta_files_deleted")
    reader.run(reader.store.delete([_FIRST]))
