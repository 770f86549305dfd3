"""Publishes tables to Iceberg catalogs, in a thread beside the work on tables: a catalog that is
slow, down or refuses delays its own entries, and no table.
"""

import threading
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import structlog

from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.lake.tables.delta_table import one_line
from lakehead.lake.tables.iceberg import Published, publish
from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_log = structlog.get_logger("lake.tables")

_PAUSE_S = (1.0, 60.0)
_END_S = 60.0


def open_catalog(name: str) -> "Catalog":
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


class IcebergPublisher:
    """The tables that have news for a catalog. `path` is the cluster's; each table is taken at most
    once at a time, and one that failed again after a pause.
    """

    def __init__(self, path: str, *, open_: "Callable[[str], Catalog]" = open_catalog) -> None:
        self._path = path
        self._open = open_
        self._catalogs: dict[str, Catalog] = {}
        """By name, those that have not failed: opening one may take requests."""
        self._pending: dict[str, TableDeclaration] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        """By topic id, of tables that failed: the pauses, and the end of the present one."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def take(self, declared: TableDeclaration) -> None:
        """Have a table published whose Delta table may have news, if it has Iceberg."""
        if not declared.has_iceberg:
            return
        with self._changed:
            self._pending[declared.topic_id] = declared
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="iceberg", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Publish what waits, one try each, for a minute at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while (declared := self._next()) is not None:
            error = self._publish(declared)
            with self._changed:
                if error is None:
                    self._pauses.pop(declared.topic_id, None)
                elif not self._is_closing:
                    self._pending.setdefault(declared.topic_id, declared)
                    backoff, _ = self._pauses.get(declared.topic_id) or (
                        Backoff(Random(declared.topic_id), first_s=_PAUSE_S[0], most_s=_PAUSE_S[1]),
                        0.0,
                    )
                    until = time.monotonic() + backoff.next_s()
                    self._pauses[declared.topic_id] = backoff, until

    def _next(self) -> TableDeclaration | None:
        """Wait for a table whose pause is over; return None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                waits = {
                    topic_id: 0.0 if self._is_closing else max(self._until(topic_id) - now, 0.0)
                    for topic_id in self._pending
                }
                for topic_id, wait in waits.items():
                    if not wait:
                        return self._pending.pop(topic_id)
                if self._is_closing:
                    return None
                self._changed.wait(min(waits.values(), default=None))

    def _until(self, topic_id: str) -> float:
        return self._pauses[topic_id][1] if topic_id in self._pauses else 0.0

    def _publish(self, declared: TableDeclaration) -> Exception | None:
        name = declared.iceberg_table
        try:
            done = self._published(declared, name)
        except Exception as error:  # noqa: BLE001 - of a catalog's client: whatever it raises
            self._catalogs.pop(declared.iceberg_catalog, None)
            _log.warning(
                "iceberg_not_published",
                topic=declared.topic,
                catalog=declared.iceberg_catalog,
                table=name,
                error=one_line(error),
            )
            return error
        if done.snapshots:
            _log.info(
                "iceberg_published",
                topic=declared.topic,
                catalog=declared.iceberg_catalog,
                table=name,
                version=done.version,
                snapshots=done.snapshots,
            )
        return None

    def _published(self, declared: TableDeclaration, name: str) -> Published:
        catalog = self._catalogs.get(declared.iceberg_catalog)
        if catalog is None:
            catalog = self._open(declared.iceberg_catalog)
            self._catalogs[declared.iceberg_catalog] = catalog
        return publish(declared.uri(self._path), catalog, name)
