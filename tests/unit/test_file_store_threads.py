"""A folder whose system has no thread left: its calls are repeated, as others are."""

import threading
from pathlib import Path

import pytest

from lakehead.storage.errors import ObjectExists, OutcomeUnknown, StoreUnavailable
from lakehead.storage.object_store.file import FileStore


async def test_a_call_without_a_thread_is_unavailable_and_a_put_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put waits for the thread that there is: it arrives, though its caller had an error."""

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = FileStore(tmp_path)
    await before.create("data/1", [b"one"])
    await before.close()
    store, opened = FileStore(tmp_path), threading.Event()
    held = store._run(lambda: opened.wait(30))  # by the only thread, which had no call before
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            await store.get("data/1")
        with pytest.raises(OutcomeUnknown, match="can't start new thread"):
            await store.create("data/2", [b"two"])
        opened.set()
        await held
    await store.close()  # after the calls that its thread has yet
    after = FileStore(tmp_path)
    with pytest.raises(ObjectExists):
        await after.create("data/2", [b"two"])
    assert await after.get("data/1") == b"one"
    await after.close()
