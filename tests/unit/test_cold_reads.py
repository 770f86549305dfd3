"""Batches of a cold read: views of the buffer that brought them, or copies if that is too large."""

from lakehead.broker.partition.cold_reads import spared

BUFFER = bytes(1 << 20)


def test_batches_that_are_a_good_part_of_a_read_together_are_not_copied() -> None:
    view = memoryview(BUFFER)
    batches = [view[start : start + 16_384] for start in range(0, 1 << 17, 16_384)]
    assert all(batch.obj is BUFFER for batch in spared(batches))


def test_a_small_batch_does_not_keep_a_large_read_in_memory() -> None:
    small, other = memoryview(BUFFER)[:16_384], memoryview(bytes(100))
    found = spared([small, other])
    assert memoryview(found[0].obj).nbytes == 16_384
    assert found[1].obj is other.obj
    assert found == [small, other]
