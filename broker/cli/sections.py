"""Settings by subject, in the order of help and docs."""

from collections.abc import Sequence

from lakehead.broker.setting_sources import SETTINGS, Setting

# The first setting of each section, in the order of SETTINGS.
_FIRST = {
    "data": "Places of data",
    "node_id": "Node and network",
    "cluster_id": "Cluster",
    "num_partitions": "Topics and messages",
    "fetch_max_bytes": "Fetch",
    "group_min_session_timeout_ms": "Groups and transactions",
    "wal_size": "Storage",
    "maintain": "Maintenance",
    "log_level": "Logs",
}


def sections() -> list[tuple[str, Sequence[Setting]]]:
    """Return every setting under its section's title."""
    found: list[tuple[str, list[Setting]]] = []
    for setting in SETTINGS:
        if setting.field in _FIRST or not found:
            found.append((_FIRST.get(setting.field, "Settings"), []))
        found[-1][1].append(setting)
    return [(title, tuple(settings)) for title, settings in found]


def shown_default(setting: Setting) -> str:
    """Return a setting's default as a user would write it."""
    if setting.default == "":
        return ""
    if setting.kind == "bool":
        return str(setting.default).lower()
    if setting.unit == "bytes" and setting.default > 0:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if setting.default % size == 0:
                return f"{setting.default // size}{unit}"
    return str(setting.default)
