"""A listing of a folder whose system has no descriptor left is repeated, as other calls are."""

import asyncio
import contextlib
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.storage.errors import StoreUnavailable
from lakehead.storage.object_store.file import FileStore
from lakehead.storage.object_store.retrying import RetryingStore


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process none to open anything by."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_listing_without_a_descriptor_is_repeated(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.create("meta/log/1", [b"entry"])
    patient = RetryingStore(store, rng=random.Random(1))
    patient.is_patient = True
    with no_descriptors():
        with pytest.raises(StoreUnavailable, match="Too many open files"):
            await store.list("meta/")
        waiting = asyncio.ensure_future(patient.list("meta/"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    assert [one.key for one in await waiting] == ["meta/log/1"]
    await store.close()
