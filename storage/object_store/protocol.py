"""The interface to object storage.

Keys are `/`-separated and relative to the cluster's prefix. Every write is put-if-absent: no name
is ever written twice, so there is no overwrite to order. A key is never also the folder of another
key (file-backed servers refuse that).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

Buffer = bytes | bytearray | memoryview
_nbytes = attrgetter("nbytes")
Owns = Callable[[str], bool]
"""Returns whether a key is the caller's, of those below a prefix that others may write to as well.
"""


def size_of(pieces: Sequence[Buffer]) -> int:
    """Return the bytes of an object's pieces. There may be a million of them."""
    views: Iterable[memoryview] = map(memoryview, pieces)
    return sum(map(_nbytes, views))


def every_key(key: str) -> bool:  # noqa: ARG001
    """Return True: there is no other writer below the prefix."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object in a listing. `size` in bytes, `modified_ms` in milliseconds since the epoch."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """An object store under one prefix."""

    uri: str

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Write the concatenation of `pieces` under `key` if the key is absent; durable when this
        returns.

        Raises ObjectExists (lost, or won by an earlier try of ours), StoreUnavailable (not
        written), OutcomeUnknown (read back before deciding).
        """

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ObjectNotFound, StoreUnavailable."""

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return exactly `length` bytes from `start`, as the store has received them: a view of
        memory that does not change spares a copy. Raises ObjectNotFound, StoreUnavailable,
        CorruptObject (short).
        """

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """Fill `target`, writable bytes, with the object's from `start`: as `get_range`, but into
        memory of the caller's, which may have been used before.
        """

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """Return the last min(`length`, size) bytes and the object's size. Raises ObjectNotFound,
        StoreUnavailable.
        """

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """Return the objects whose key starts with `prefix` and is greater than `start_after`, in
        key order: all of them, or at most the first `limit`.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the keys; an absent key is not an error. Raises StoreUnavailable (some may be
        gone).
        """

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """Give up writes to keys that the caller `owns` that began before (by the store's clock)
        and never became an object; returns how many. A write that is still alive fails by it as
        StoreUnavailable. Raises StoreUnavailable.
        """

    async def close(self) -> None:
        """Release what the store holds."""
