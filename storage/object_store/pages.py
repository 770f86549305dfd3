"""A listing in pages of one request each: a bucket may have more names than memory has room for."""

from collections.abc import AsyncIterator, Sequence

from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore

PAGE = 1000
"""As many names as one request of S3 returns."""


async def pages(
    store: ObjectStore, prefix: str, *, size: int = PAGE
) -> AsyncIterator[Sequence[ObjectMeta]]:
    """Yield the objects whose key starts with `prefix`, in key order and each once, though a store
    may return a name twice. The caller may delete those that it has. Raises StoreUnavailable.
    """
    last = ""
    while True:
        found = await store.list(prefix, start_after=last, limit=size)
        named = {one.key: one for one in found if one.key > last}
        if not named:
            return
        last = max(named)
        yield tuple(named.values())
        if len(found) < size:
            return
