"""An object store in memory: for tests, and for trying things out."""

from collections.abc import Sequence

from lakehead.storage.errors import CorruptObject, ObjectExists, ObjectNotFound
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, Owns, every_key


class MemoryStore:
    """Keeps objects in a dictionary. `objects` may be shared by several stores: the same bucket,
    seen by many nodes.
    """

    uri = "memory:"

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects: dict[str, bytes] = {} if objects is None else objects

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`."""
        if key in self.objects:
            raise ObjectExists(key)
        self.objects[key] = b"".join(pieces)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFound(key) from None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        body = await self.get(key)
        if start < 0 or start + length > len(body):
            raise CorruptObject(key, start, f"wanted {length} bytes, the object has {len(body)}")
        return body[start : start + length]

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        target[:] = await self.get_range(key, start, len(target))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        body = await self.get(key)
        return body[max(0, len(body) - length) :], len(body)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > start_after)
        return [
            ObjectMeta(key=key, size=len(self.objects[key]), modified_ms=0) for key in keys[:limit]
        ]

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        for key in keys:
            self.objects.pop(key, None)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:  # noqa: ARG002
        """See `ObjectStore.abort_uploads`: nothing is ever half written."""
        return 0

    async def close(self) -> None:
        """Nothing to release."""
