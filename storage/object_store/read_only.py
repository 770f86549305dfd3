"""A store that is only read: that of a standby."""

from collections.abc import Sequence
from typing import NoReturn

from lakehead.storage.errors import ReadOnlyCluster
from lakehead.storage.object_store.protocol import (
    Buffer,
    ObjectMeta,
    ObjectStore,
    Owns,
    every_key,
)


class ReadOnlyStore:
    """Wraps a store. Every call that would change it raises ReadOnlyCluster."""

    def __init__(self, inner: ObjectStore) -> None:
        self.uri = inner.uri
        self._inner = inner

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:  # noqa: ARG002
        """Raise ReadOnlyCluster."""
        self._refuse(f"put {key}")

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`."""
        return await self._inner.get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        await self._inner.get_range_into(key, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        return await self._inner.get_suffix(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        return await self._inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """Raise ReadOnlyCluster."""
        self._refuse(f"delete {', '.join(keys[:3])}")

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:  # noqa: ARG002
        """Raise ReadOnlyCluster."""
        self._refuse("abort uploads")

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self._inner.close()

    def _refuse(self, call: str) -> NoReturn:
        raise ReadOnlyCluster(f"{self.uri} is only read here: refused to {call}")
