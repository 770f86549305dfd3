"""How things show themselves in a notebook."""

from collections.abc import Mapping
from html import escape
from typing import Any

_ROWS_MAX = 60


def card(title: str, facts: Mapping[str, object], frame: Any) -> str:
    """Return HTML of a title, facts by name and a DataFrame, everything escaped."""
    told = " · ".join(f"{escape(name)} {escape(str(fact))}" for name, fact in facts.items())
    table = frame.to_html(index=False, max_rows=_ROWS_MAX, border=0, na_rep="")
    return f"<div><b>{escape(title)}</b><br/>{told}{table}</div>"


def size(count: int) -> str:
    """Return bytes for people."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}" if units[0] != "B" else f"{count} B"
