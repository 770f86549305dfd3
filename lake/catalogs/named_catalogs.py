"""The catalogs of a machine by their names, from a file that its operator writes.

Topics name a catalog, and not an address: any client may set configs of topics, and jobs send
requests to a catalog with their own rights. `LAKEHEAD_TABLE_CATALOGS` has the path of a TOML file:

    [lake]
    type = "unity"
    uri = "https://unity:8080"
    token_file = "/run/secrets/unity"
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lakehead.lake.catalogs.table_entry import TableCatalog
from lakehead.storage.errors import SettingsError

CATALOGS = "LAKEHEAD_TABLE_CATALOGS"


def _unity(name: str, options: Mapping[str, Any]) -> TableCatalog:
    from lakehead.lake.catalogs.unity import UnityCatalog

    return UnityCatalog(name, **options)


def _glue(name: str, options: Mapping[str, Any]) -> TableCatalog:
    from lakehead.lake.catalogs.glue import GlueCatalog

    return GlueCatalog(name, **options)


def _hive(name: str, options: Mapping[str, Any]) -> TableCatalog:
    from lakehead.lake.catalogs.hive import HiveCatalog

    return HiveCatalog(name, **options)


_TYPES: Mapping[str, tuple[Callable[[str, Mapping[str, Any]], TableCatalog], frozenset[str]]] = {
    "unity": (_unity, frozenset({"uri", "token_file", "ca_file"})),
    "glue": (_glue, frozenset({"region", "catalog_id", "endpoint"})),
    "hive": (_hive, frozenset({"uri", "spark"})),
}
"""By type: the function that opens one, and its options."""
_NEEDED = {"unity": "uri", "hive": "uri"}


def open_table_catalog(name: str, environment: Mapping[str, str] = os.environ) -> TableCatalog:
    """Return the catalog of a name. Sends no request. Raises SettingsError."""
    path = environment.get(CATALOGS, "")
    if not path:
        raise SettingsError(
            f"the catalog {name!r} is not known here: set {CATALOGS} to the file of catalogs"
        )
    try:
        known = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read the file of catalogs {path}: {error}") from None
    if not isinstance(known.get(name), dict):
        raise SettingsError(f"{path} has no catalog {name!r}, only: {', '.join(known) or 'none'}")
    options = dict(known[name])
    kind = str(options.pop("type", ""))
    if kind not in _TYPES:
        raise SettingsError(f"{path}: the type of {name!r} is one of: {', '.join(_TYPES)}")
    open_, allowed = _TYPES[kind]
    if others := sorted(set(options) - allowed):
        raise SettingsError(
            f"{path}: {name!r} has unknown options {', '.join(others)}; those of {kind} are: "
            f"{', '.join(sorted(allowed))}"
        )
    if (needed := _NEEDED.get(kind)) and not options.get(needed):
        raise SettingsError(f"{path}: {name!r} needs the option {needed}")
    return open_(name, options)
