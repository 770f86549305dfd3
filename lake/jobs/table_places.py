"""Whether a table lies where jobs may write and delete: in a root of its own.

Looked at when work on a table begins and again before what deletes, by the metadata and by the file
system of this machine. Brokers look when a topic is configured; a declaration may be older than
that, or mean another folder here.
"""

import os
import threading
from pathlib import Path

from lakehead.lake.catalog import Catalog
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.table_declaration import TableDeclaration
from lakehead.storage.metadata.table_paths import allowed_roots
from lakehead.storage.metadata.table_roots import TableRoots

ROOTS = "LAKEHEAD_TABLE_ROOTS"
"""What the nodes call `table.roots`. Where it is set for a job, jobs keep to it too."""

_LOCK = threading.Lock()
_known: dict[str, tuple[Catalog, TableRoots]] = {}


def table_roots(catalog: Catalog) -> TableRoots:
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
    roots = table_roots(catalog)
    if not topic and ":" not in uri:
        uri = str(Path(uri).absolute())  # a command's own folder; a config has no such
    roots.check(uri, topic)
    if ROOTS in os.environ:
        roots.check_allowed(uri, allowed_roots(os.environ[ROOTS]))


def check_declared_place(catalog: Catalog, declared: TableDeclaration) -> None:
    """Raise SettingsError unless a declared table has a root of its own."""
    try:
        check_place(catalog, declared.uri(catalog.uri), declared.topic)
    except SettingsError as error:
        raise SettingsError(f"topic {declared.topic}: {error}") from None
