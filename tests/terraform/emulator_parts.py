"""Parts of moto, taken hold of to be changed."""

import inspect
from collections.abc import Callable
from typing import Any


class ShimMisfit(Exception):
    """This moto is not the one that the changes were written for."""


def taken(owner: Any, name: str, parameters: str) -> Callable[..., Any]:
    """Return a function of moto's that is about to be replaced. Raises ShimMisfit."""
    found = inspect.getattr_static(owner, name, None)
    names = " ".join(inspect.signature(found).parameters) if inspect.isfunction(found) else ""
    if names != parameters:
        raise ShimMisfit(
            f"{getattr(owner, '__name__', owner)}.{name} takes {names or 'nothing'!r}, and the "
            f"change is for {parameters!r}"
        )
    kept: Callable[..., Any] = getattr(owner, name)
    return kept
