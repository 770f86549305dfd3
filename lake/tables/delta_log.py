"""What a Delta table's log says of its files, statistics and all, read as the JSON that it is.

Delta-rs tells statistics only as typed columns. Entries are read from the first to the newest, so
this is for tables that this package made and nobody else keeps: one that was made for a rebuild.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from lake.store_reader import store_reader
from lake.tables.data_file import DataFile
from storage.failpoints import failpoint

_LOG = "_delta_log/"


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


def _actions(uri: str) -> Iterator[dict[str, Any]]:
    reader = store_reader(uri)
    for listed in reader.run(reader.store.list(_LOG)):
        if listed.key.endswith(".json"):
            for line in reader.run(reader.store.get(listed.key)).splitlines():
                yield msgspec.json.decode(line)


def delete_table(uri: str) -> None:
    """Delete everything below a table's root; killed on the way, it leaves a table of before."""
    reader = store_reader(uri)
    keys = [listed.key for listed in reader.run(reader.store.list(""))]
    # The newest entry first, one by one: what is left is the log of an older version.
    for key in sorted((key for key in keys if key.startswith(_LOG)), reverse=True):
        reader.run(reader.store.delete([key]))
        failpoint("delta_log_entry_deleted")
    if files := [key for key in keys if not key.startswith(_LOG)]:
        reader.run(reader.store.delete(files))
