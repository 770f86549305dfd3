"""Publishes tables to catalogs, in a thread beside the work on tables: a catalog that is slow, down
or refuses delays its own entries, and no table.
"""

import threading
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Protocol

import structlog

from lakehead.lake.catalogs.named_catalogs import open_table_catalog
from lakehead.lake.catalogs.table_entry import TableCatalog, entry_of
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.tables.delta_table import one_line
from lakehead.lake.tables.iceberg import publish
from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog

_log = structlog.get_logger("lake.tables")

_PAUSE_S = (1.0, 60.0)
_END_S = 60.0
ENTRY_S = 60.0
"""The least time between two looks at the entry of a table, which changes with its columns only."""


def open_iceberg_catalog(name: str) -> "IcebergCatalog":
    """Return a catalog by its name in PyIceberg's settings (`~/.pyiceberg.yaml`, or
    `PYICEBERG_CATALOG__NAME__URI` and so on). Raises SettingsError.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise SettingsError(
            "Iceberg tables need PyIceberg: pip install 'lakehead[iceberg]'"
        ) from None
    try:
        return load_catalog(name)
    except ValueError as error:
        raise SettingsError(f"the Iceberg catalog {name!r}: {one_line(error)}") from None


class Publication(Protocol):
    """One way in which a table is published. `kind` begins the names of its log events; `pause_s`
    is the least time between two turns of a table.
    """

    kind: str
    pause_s: float

    def catalog(self, declared: TableDeclaration) -> str:
        """Return the name of the catalog that a table is declared for; empty for none."""
        ...

    def table(self, declared: TableDeclaration) -> str:
        """Return the table's name in the catalog."""
        ...

    def publish(self, declared: TableDeclaration, uri: str) -> Mapping[str, object] | None:
        """Bring the catalog up to the table at `uri`; return what to log, None if nothing was
        changed. Raises any exception of a catalog's client.
        """
        ...


class IcebergTables:
    """Iceberg tables over the files of Delta tables."""

    kind = "iceberg"
    pause_s = 0.0

    def __init__(self, open_: "Callable[[str], IcebergCatalog]" = open_iceberg_catalog) -> None:
        self._open = open_
        self._catalogs: dict[str, IcebergCatalog] = {}
        """By name, those that have not failed: opening one may take requests."""

    def catalog(self, declared: TableDeclaration) -> str:
        """See `Publication`."""
        return declared.iceberg_catalog if declared.has_iceberg else ""

    def table(self, declared: TableDeclaration) -> str:
        """See `Publication`."""
        return declared.iceberg_table

    def publish(self, declared: TableDeclaration, uri: str) -> Mapping[str, object] | None:
        """See `Publication`."""
        name = declared.iceberg_catalog
        catalog = self._catalogs.pop(name, None) or self._open(name)
        done = publish(uri, catalog, declared.iceberg_table)
        self._catalogs[name] = catalog
        if not done.snapshots:
            return None
        return {"version": done.version, "snapshots": done.snapshots}


class CatalogEntries:
    """Entries of Delta tables in catalogs."""

    kind = "catalog"
    pause_s = ENTRY_S

    def __init__(self, open_: Callable[[str], TableCatalog] = open_table_catalog) -> None:
        self._open = open_
        self._catalogs: dict[str, TableCatalog] = {}

    def catalog(self, declared: TableDeclaration) -> str:
        """See `Publication`."""
        return declared.catalog

    def table(self, declared: TableDeclaration) -> str:
        """See `Publication`."""
        return declared.catalog_table

    def publish(self, declared: TableDeclaration, uri: str) -> Mapping[str, object] | None:
        """See `Publication`."""
        name = declared.catalog
        catalog = self._catalogs.pop(name, None) or self._open(name)
        entry = entry_of(declared, uri)
        changed = catalog.put(entry)
        self._catalogs[name] = catalog
        return {"location": entry.location, "columns": len(entry.columns)} if changed else None


_Waiting = tuple[str, str, str]
"""The id of a topic, the name of its table, and the kind of a publication."""


class CatalogPublisher:
    """The tables that may have news for a catalog. `path` is the cluster's; each table is taken at
    most once at a time, and one that failed again after a pause.
    """

    def __init__(self, path: str, publications: tuple[Publication, ...] | None = None) -> None:
        self._path = path
        ways = publications or (IcebergTables(), CatalogEntries())
        self._publications = {way.kind: way for way in ways}
        self._pending: dict[_Waiting, TableDeclaration] = {}
        self._backoffs: dict[_Waiting, Backoff] = {}
        self._until: dict[_Waiting, float] = {}
        """The ends of pauses, by the monotonic clock."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def take(self, declared: TableDeclaration) -> None:
        """Have a table published that may have news, if it is declared for a catalog."""
        ways = [way for way in self._publications.values() if way.catalog(declared)]
        if not ways:
            return
        with self._changed:
            self._pending |= {
                (declared.topic_id, declared.name, way.kind): declared for way in ways
            }
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="catalogs", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Publish what waits, one try each, for a minute at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while (found := self._next()) is not None:
            waiting, declared = found
            way = self._publications[waiting[2]]
            is_done = self._publish(way, declared)
            with self._changed:
                if is_done:
                    self._backoffs.pop(waiting, None)
                    pause_s = way.pause_s
                else:
                    if not self._is_closing:
                        self._pending.setdefault(waiting, declared)
                    backoff = self._backoffs.setdefault(
                        waiting,
                        Backoff(Random(declared.topic_id), first_s=_PAUSE_S[0], most_s=_PAUSE_S[1]),
                    )
                    pause_s = backoff.next_s()
                self._until[waiting] = time.monotonic() + pause_s

    def _next(self) -> tuple[_Waiting, TableDeclaration] | None:
        """Wait for a table whose pause is over; return None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                pauses = {
                    waiting: 0.0
                    if self._is_closing
                    else max(self._until.get(waiting, 0.0) - now, 0.0)
                    for waiting in self._pending
                }
                for waiting, pause in pauses.items():
                    if not pause:
                        return waiting, self._pending.pop(waiting)
                if self._is_closing:
                    return None
                self._changed.wait(min(pauses.values(), default=None))

    def _publish(self, way: Publication, declared: TableDeclaration) -> bool:
        about = {
            "topic": declared.topic,
            "catalog": way.catalog(declared),
            "table": way.table(declared),
        }
        try:
            done = way.publish(declared, declared.uri(self._path))
        except Exception as error:  # noqa: BLE001 - of a catalog's client: whatever it raises
            _log.warning(f"{way.kind}_not_published", **about, error=one_line(error))
            return False
        if done is not None:
            _log.info(f"{way.kind}_published", **about, **done)
        return True
