"""An immutable mapping: rows of a checkpoint, and the changes since.

A million objects cost what their columns cost; values are made on demand. A changed version shares
rows and nearly all changes with the one before.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar, overload

from immutables import Map

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
D = TypeVar("D")


class Rows(Protocol[K, V_co]):
    """Rows of a checkpoint, ascending by key."""

    def __len__(self) -> int:
        """Return how many there are."""

    def find(self, key: K) -> int:
        """Return the row of a key; -1 if there is none."""

    def key(self, row: int) -> K:
        """Return a row's key."""

    def value(self, row: int) -> V_co:
        """Return a row's value."""


class Table(Generic[K, V]):
    """See the module's docstring. `changes` holds None for a row that was deleted."""

    __slots__ = ("_size", "changes", "rows")

    def __init__(
        self,
        rows: Rows[K, V] | None = None,
        changes: Map[K, V | None] | None = None,
        size: int | None = None,
    ) -> None:
        self.rows = rows
        self.changes: Map[K, V | None] = Map() if changes is None else changes
        self._size = (0 if rows is None else len(rows)) if size is None else size

    def set(self, key: K, value: V) -> "Table[K, V]":
        """Return a table with this value in it."""
        size = self._size + (key not in self)
        return Table(self.rows, self.changes.set(key, value), size)

    def delete(self, key: K) -> "Table[K, V]":
        """Return a table without this key. Raises KeyError."""
        if key not in self:
            raise KeyError(key)
        if self._find(key) >= 0:
            return Table(self.rows, self.changes.set(key, None), self._size - 1)
        return Table(self.rows, self.changes.delete(key), self._size - 1)

    def update(self, changed: Iterable[tuple[K, V]]) -> "Table[K, V]":
        """Return a table with these keys and values in it."""
        size = self._size
        with self.changes.mutate() as changes:
            for key, value in changed:
                size += changes[key] is None if key in changes else self._find(key) < 0
                changes.set(key, value)
            changed_rows = changes.finish()
        return Table(self.rows, changed_rows, size)

    def without(self, keys: Iterable[K]) -> "Table[K, V]":
        """Return a table without these keys, which are all different. Raises KeyError."""
        size = self._size
        with self.changes.mutate() as changes:
            for key in keys:
                is_row = self._find(key) >= 0
                if changes[key] is None if key in changes else not is_row:
                    raise KeyError(key)
                if is_row:
                    changes.set(key, None)
                else:
                    changes.pop(key)
                size -= 1
            left = changes.finish()
        return Table(self.rows, left, size)

    def _find(self, key: K) -> int:
        return -1 if self.rows is None else self.rows.find(key)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return a value, or `default`."""
        if key in self.changes:
            value = self.changes[key]
            return default if value is None else value
        row = self._find(key)
        if row < 0 or self.rows is None:
            return default
        return self.rows.value(row)

    def __contains__(self, key: K) -> bool:
        if key in self.changes:
            return self.changes[key] is not None
        return self._find(key) >= 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        if self.rows is not None:
            for row in range(len(self.rows)):
                key = self.rows.key(row)
                if key not in self.changes:
                    yield key
        for key, value in self.changes.items():
            if value is not None:
                yield key

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and values."""
        if self.rows is not None:
            for row in range(len(self.rows)):
                key = self.rows.key(row)
                if key not in self.changes:
                    yield key, self.rows.value(row)
        for key, value in self.changes.items():
            if value is not None:
                yield key, value

    def keys(self) -> Iterator[K]:
        """Yield keys."""
        return iter(self)

    def values(self) -> Iterator[V]:
        """Yield values."""
        return (value for _, value in self.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        if self.rows is other.rows and self.changes is other.changes:
            return True
        return dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # large, and never a key

    def __repr__(self) -> str:
        return f"Table({len(self)} values, {len(self.changes)} changes)"
