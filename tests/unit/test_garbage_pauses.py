"""The garbage collector of a node looks at little at a time, whatever has come in."""

import gc
import time
from collections.abc import Iterator

import pytest

from lakehead.broker.process import GC_THRESHOLDS
from lakehead.storage.stream.log_cache import CachedBatch, LogCache


@pytest.fixture
def longest_pause() -> Iterator[list[float]]:
    """The longest collection so far, in CPU time, with a node's thresholds."""
    before, began, longest = gc.get_threshold(), [0.0], [0.0]

    def watch(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.thread_time()
        else:
            longest[0] = max(longest[0], time.thread_time() - began[0])

    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.callbacks.append(watch)
    yield longest
    gc.callbacks.remove(watch)
    gc.set_threshold(*before)


def test_very_many_small_batches_make_no_long_pause(longest_pause: list[float]) -> None:
    cache = LogCache(1 << 40)
    for offset in range(600_000):
        payload = memoryview(bytearray(70))
        cache.add(offset % 50, CachedBatch(offset, offset + 1, 0, 0, payload))
    assert 0 < longest_pause[0] < 0.005
