"""Lakehead: Kafka clients write streams, and Spark, Arrow and Delta tables read them.

This is the interface for programs. Each name is imported at its first use, so `import lakehead`
takes no time. The parts are packages of their own: `lakehead.broker`,
`lakehead.storage`, `lakehead.lake` and `lakehead.connectors`; in the repository each is a folder
at the top, to which a link in this folder leads (`docs/decisions/packages.md`).

    import lakehead

    frame = lakehead.scan("s3://bucket/prefix", "orders").read_all()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehead.installation import VERSION

if TYPE_CHECKING:
    from lakehead.lake.async_scan import scan_async
    from lakehead.lake.cluster_tables import catalog_tables
    from lakehead.lake.spark import spark_session
    from lakehead.lake.topic_scan import scan
    from lakehead.storage.errors import LakeheadError

__all__ = ["LakeheadError", "catalog_tables", "scan", "scan_async", "spark_session"]
__version__ = VERSION

_HOMES = {
    "LakeheadError": "lakehead.storage.errors",
    "catalog_tables": "lakehead.lake.cluster_tables",
    "scan": "lakehead.lake.topic_scan",
    "scan_async": "lakehead.lake.async_scan",
    "spark_session": "lakehead.lake.spark",
}


def __getattr__(name: str) -> Any:
    """Import what programs use when they do. Raises AttributeError for what is not there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
