"""Sizes, times and addresses as people read them."""

from datetime import UTC, datetime


def size_text(size: float) -> str:
    """Return bytes with a unit of 1,024s."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def address_text(host: str, port: int | str) -> str:
    """Return an address as clients take it: with brackets around the host if it is of IPv6
    (RFC 3986). A host may have them already.
    """
    is_bare = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare else f"{host}:{port}"


def moment(milliseconds: int) -> str:
    """Return a timestamp (ms since the epoch) as text in UTC; a dash for none."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[
            :23
        ]
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
