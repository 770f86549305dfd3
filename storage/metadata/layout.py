"""Names under `meta/`: entries, checkpoints and the boundary.

meta/log/<20-digit number>.json          entry `number`
meta/checkpoint/<20-digit number>.parquet  the state before entry `number`
meta/boundary/<20-digit number>-<nonce>  entries below `number` are closed: they may be deleted
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lakehead.storage.metadata.entry import entry_number
from lakehead.storage.object_store.protocol import ObjectMeta

META = "meta/"
EARLIER = "meta-before-"
"""The traces that a rebuild of the catalog leaves of the metadata before it: a copy in
`meta-before-N/`, and `meta-before-N.rebuilt` in any case. While one is there, objects of before it
may be named by metadata that an operator puts back.
"""
BOUNDARIES = "meta/boundary/"
CHECKPOINTS = "meta/checkpoint/"
ENTRIES = "meta/log/"
_PARQUET = ".parquet"
_DIGITS = 20


def checkpoint_key(number: int) -> str:
    """Return the key of the checkpoint before entry `number`."""
    return f"{CHECKPOINTS}{number:0{_DIGITS}d}{_PARQUET}"


def checkpoint_number(key: str) -> int | None:
    """Return the number of the checkpoint with this key; None when none is called so."""
    digits = key.removeprefix(CHECKPOINTS).removesuffix(_PARQUET)
    return int(digits) if digits.isdecimal() and key == checkpoint_key(int(digits)) else None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Boundary:
    """Entries below `number` are closed. No two boundaries have one key, ever."""

    number: int
    nonce: str

    @property
    def key(self) -> str:
        """The key of its object."""
        return f"{BOUNDARIES}{self.number:0{_DIGITS}d}-{self.nonce}"

    @classmethod
    def of(cls, key: str) -> "Boundary | None":
        """Return the boundary with this key; None when none is called so."""
        digits, _, nonce = key.removeprefix(BOUNDARIES).partition("-")
        if not digits.isdecimal():
            return None
        boundary = cls(number=int(digits), nonce=nonce)
        return boundary if boundary.key == key else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The result of a listing, each part in ascending order."""

    boundaries: tuple[Boundary, ...]
    checkpoints: tuple[int, ...]
    entries: tuple[int, ...]

    @classmethod
    def of(cls, found: Iterable[ObjectMeta]) -> "Listing":
        """Sort out what was found; what is named otherwise is left alone."""
        keys = [item.key for item in found]
        return cls(
            boundaries=tuple(sorted(b for key in keys if (b := Boundary.of(key)) is not None)),
            checkpoints=tuple(n for key in keys if (n := checkpoint_number(key)) is not None),
            entries=tuple(n for key in keys if (n := entry_number(key)) is not None),
        )

    @property
    def boundary(self) -> Boundary | None:
        """The boundary: the greatest there is."""
        return self.boundaries[-1] if self.boundaries else None
