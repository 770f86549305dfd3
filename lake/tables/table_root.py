"""The root of a table: the files in it that are the table's, and whether jobs may write there.

VACUUM and a rebuild delete files that no version of a table names, so only names that Delta's
writers give count as the table's (`part-…parquet`, in folders of partitions). That such a file
belongs to this table and not another follows from the root: it held nothing when the table was made
in it, which the table's first commit records (`OWN_ROOT`).

The place of a root is checked when work on a table begins and again before files are deleted, by
the metadata and by the file system of this machine. Brokers check it when a topic is configured; a
declaration may be older than that, or mean another folder here.
"""

import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.paths import allowed_roots
from lakehead.lake.declaration.roots import TableRoots
from lakehead.lake.declaration.table_declaration import (
    TableDeclaration,
    declared_paths,
    default_table_uri,
)
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError

OWN_ROOT = "lakehead:own-root"
"""The `txn` action of a table whose root held nothing when it was made."""

LOG = "_delta_log/"

_PARTITIONS = r"(?:[^/=]+=[^/]*/)*"
_FILE = re.compile(
    rf"{_PARTITIONS}(?:\.?part-[^/]+\.parquet(?:\.crc)?|deletion_vector_[^/]+\.bin)"
    rf"|_change_data/{_PARTITIONS}cdc-[^/]+\.parquet"
)
_WRITTEN = re.compile(rf"{_PARTITIONS}part-[0-9a-f]{{32}}\.zstd\.parquet")


def is_data_file(name: str) -> bool:
    """Return whether a writer of Delta tables gives this name, below a root, to a data file."""
    return _FILE.fullmatch(name) is not None


def _is_written_here(name: str) -> bool:
    """Return whether `lakehead.lake.tables.data_file` gives this name: of 128 random bits."""
    return _WRITTEN.fullmatch(name) is not None


def names_below(root: str) -> list[str]:
    """Return the names of all files below a root. Raises SettingsError where it cannot be listed,
    and the errors of `ObjectStore.list`.
    """
    reader = store_reader(root)
    try:
        return [listed.key for listed in reader.run(reader.store.list(""))]
    except OSError as error:
        raise SettingsError(f"cannot look into {root}: {error.strerror}") from error


def require_own_root(root: str) -> None:
    """Raise SettingsError unless a table that is made at a root has it for itself: there is nothing
    but files that runs of this package have left.
    """
    refuse_others(
        root,
        (name for name in names_below(root) if not _is_written_here(name)),
        "a table is made in a folder of its own: name an empty one, or move these files away",
    )


def refuse_others(root: str, names: Iterable[str], advice: str) -> None:
    """Raise SettingsError for files below a root that are not a table's; those of logs are."""
    others = sorted(name for name in names if not name.startswith(LOG))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise SettingsError(f"{root} holds {others[0]}{more}: {advice}")


ROOTS = "LAKEHEAD_TABLE_ROOTS"
"""The setting `table.roots` of nodes, as an environment variable. If it is set for a job, the job
obeys it too.
"""

_LOCK = threading.Lock()
_known: dict[str, tuple[Catalog, TableRoots]] = {}


def _table_roots(catalog: Catalog) -> TableRoots:
    """Return the roots of a cluster as of a catalog; kept until its topics or nodes change."""
    with _LOCK:
        known = _known.get(catalog.uri)
        if known is not None:
            state = known[0].state
            if state.topics is catalog.state.topics and state.nodes is catalog.state.nodes:
                return known[1]
        roots = TableRoots(catalog.state, catalog.uri, follows_links=True)
        _known.clear()  # one cluster at a time: a process works on one
        _known[catalog.uri] = catalog, roots
        return roots


def check_place(catalog: Catalog, uri: str, topic: str = "") -> None:
    """Raise SettingsError unless the table of a topic (without: one that no topic declares) may
    lie at `uri`.
    """
    roots = _table_roots(catalog)
    if not topic and ":" not in uri:
        uri = str(Path(uri).absolute())  # a command's own folder; a config has no such
    roots.check(uri, topic)
    if ROOTS in os.environ:
        roots.check_allowed(uri, allowed_roots(os.environ[ROOTS]))


def check_declared_place(catalog: Catalog, declared: TableDeclaration) -> None:
    """Raise SettingsError unless a declared table has a root of its own."""
    uri = declared.uri(catalog.uri)
    try:
        check_place(catalog, uri, declared.topic)
        for name, path in declared_paths(
            declared.topic, catalog.topic(declared.topic).configs
        ).items():
            if name != declared.name:
                other = path or default_table_uri(catalog.uri, name)
                _table_roots(catalog).check_apart((uri, other))
    except SettingsError as error:
        raise SettingsError(f"topic {declared.topic}: {error}") from None
