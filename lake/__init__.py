"""Spark and Arrow side: reads stream objects in place and keeps Delta tables of topics."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.async_scan import scan_async
    from lake.cluster_tables import catalog_tables
    from lake.topic_scan import scan

__all__ = ["catalog_tables", "scan", "scan_async"]


def __getattr__(name: str) -> Any:
    """Import what `lake` offers when it is first used: the kernels take a moment to load."""
    if name == "scan":
        from lake.topic_scan import scan

        return scan
    if name == "scan_async":
        from lake.async_scan import scan_async

        return scan_async
    if name == "catalog_tables":
        from lake.cluster_tables import catalog_tables

        return catalog_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
