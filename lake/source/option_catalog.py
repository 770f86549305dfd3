"""The options of a read of the catalog, instead of records."""

from dataclasses import dataclass

from lakehead.lake.cluster_tables import CATALOG_SCHEMAS, OFFSETS_FOR
from lakehead.lake.source.option_values import Options, choice, number
from lakehead.storage.errors import SettingsError

_TAKEN = ("path", "catalog", "timestamp", "subscribe")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """Which table. `timestamp` (milliseconds) and `topics` (none: all) are for `offsets_for`."""

    path: str
    table: str
    timestamp: int = -1
    topics: tuple[str, ...] = ()


def catalog_in(options: Options) -> CatalogOptions:
    """Return which table of the catalog is asked for. Raises SettingsError."""
    table = choice(options, "catalog", tuple(CATALOG_SCHEMAS), default="")
    timestamp = number(options, "timestamp", "milliseconds since the epoch", least=0)
    others = [name for name in options if name not in _TAKEN]
    if table != OFFSETS_FOR:
        others += [name for name in ("timestamp", "subscribe") if name in options]
    if others:
        raise SettingsError(f"option {others[0]!r} is not for catalog={table}")
    if table == OFFSETS_FOR and timestamp is None:
        raise SettingsError(f"catalog={OFFSETS_FOR} needs option 'timestamp', in milliseconds")
    names = options.get("subscribe", "").split(",")
    return CatalogOptions(
        path=options["path"].strip(),
        table=table,
        timestamp=-1 if timestamp is None else timestamp,
        topics=tuple(name.strip() for name in names if name.strip()),
    )
