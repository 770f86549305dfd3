"""The metrics of declared tables, beside commands that keep them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.cluster import store_uri
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_status import TableStatus

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="With --follow: serve the metrics of the tables for Prometheus.",
    ),
]


def check_metrics(address: str | None) -> None:
    """Raise SettingsError if a command that ends by itself is to serve metrics."""
    if address is not None:
        raise SettingsError("--metrics is for --follow: lakehead tables --json shows them once")


@contextmanager
def shown_metrics(path: str, address: str | None) -> Iterator[None]:
    """Serve the metrics of the declared tables while the block runs, if there is an address.

    Raises SettingsError when the address cannot be had.
    """
    if address is None:
        yield
        return
    from lakehead.broker.observability.table_metrics import served_tables
    from lakehead.lake.jobs.table_status import table_statuses
    from lakehead.lake.store_reader import store_reader

    clock, reader = SystemClock(), store_reader(store_uri(path))

    def statuses() -> "list[TableStatus]":
        return table_statuses(reader.open_catalog(), clock.now_ms())

    with served_tables(address, statuses, clock):
        yield
