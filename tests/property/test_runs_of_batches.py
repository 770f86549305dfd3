"""An object is the same, whether its batches were added as runs or one after the other."""

from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.storage.format import object_writer
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.record_batch import CONTROL, HEADER_SIZE, BatchHeader, sealed
from lakehead.storage.format.stream_object import StreamInfo
from tests.support.repetitions import examples

BLOCK_SIZE = 1000
HUGE = 2**31 - 9
Batch = tuple[int, int, int, bytes, int]

payloads = st.builds(
    lambda attributes, records, size: sealed(
        BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, -1, -1, -1, records), bytes(size)
    ),
    st.sampled_from([0, 0, 0, CONTROL]),
    st.integers(-1, 3),
    st.integers(0, 600),
) | st.binary(max_size=HEADER_SIZE - 1)
kinds = st.tuples(
    st.integers(0, 3), st.integers(1, 3) | st.just(HUGE), payloads, st.integers(-1, 9)
)


def batches_of(drawn: list[tuple[int, int, bytes, int]], first: int) -> list[Batch]:
    bases = accumulate((count for _, count, _, _ in drawn), initial=first)
    return [
        (epoch, base, count, payload, newest)
        for (epoch, count, payload, newest), base in zip(drawn, bases, strict=False)
    ]


def written(runs: list[list[Batch]], *, one_at_a_time: bool, skips: bool) -> WrittenObject:
    writer = ObjectWriter(
        kind="so", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    writer.begin_stream(StreamInfo(stream_id=7, topic_id="t", topic="t", partition=0))
    if skips and runs:
        writer.skip(0, runs[0][0][1])
    for run in runs:
        if one_at_a_time:
            for batch in run:
                writer.add(*batch)
        else:
            epochs, bases, counts, data, newest = map(list, zip(*run, strict=True))
            writer.add_run(epochs, bases, counts, data, newest)
    return writer.finish()


@given(st.lists(kinds, max_size=40), st.integers(1, 12), st.booleans())
@example([(0, 1, b"", 0), (0, HUGE, b"", 0), (0, HUGE, b"", 0), (0, 2, b"", 0)], 4, True)
@settings(max_examples=examples(150), deadline=None)
def test_runs_make_the_same_object(
    drawn: list[tuple[int, int, bytes, int]], length: int, skips: bool
) -> None:
    batches = batches_of(drawn, 5)
    runs = [batches[at : at + length] for at in range(0, len(batches), length)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(object_writer, "BLOCK_SIZE", BLOCK_SIZE)
        in_runs = written(runs, one_at_a_time=False, skips=skips)
        assert in_runs == written(runs, one_at_a_time=True, skips=skips)


def test_a_gap_within_a_run_is_refused() -> None:
    batches = batches_of([(0, 2, b"a", 0)] * 3, 5)
    with pytest.raises(ValueError, match="offset 20 after 9"):
        written([[*batches[:2], (0, 20, 1, b"b", 0)]], one_at_a_time=False, skips=False)
