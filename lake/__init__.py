"""Spark and Arrow side: reads stream objects in place and keeps Delta tables of topics."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.topic_scan import scan

__all__ = ["scan"]


def __getattr__(name: str) -> Any:
    """Import what `lake` offers when it is first used: the kernels take a moment to load."""
    if name == "scan":
        from lake.topic_scan import scan

        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
