"""A bound of what lies in objects from an offset on."""

from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.metadata.extents import Extent, Extents


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100)), min_size=1, max_size=40),
    st.integers(0, 210),
    st.integers(1, 1000),
)
def test_a_size_is_never_too_small_and_exact_for_a_few_extents(
    counts: list[tuple[int, int]], offset: int, most: int
) -> None:
    values, end = [], 0
    for number, (count, size) in enumerate(counts):
        values.append(
            Extent(
                start_offset=end,
                end_offset=end + count,
                object_key=f"data/{number}",
                max_timestamp=0,
                size=size,
            )
        )
        end += count
    left = [one.size for one in values if one.end_offset > offset]
    found = Extents.of(values).size_from(offset, most)
    assert found <= most
    if not left:  # no extent holds the offset
        assert found == most
    else:
        assert found >= min(sum(left), most)
        if len(left) <= 8:
            assert found == min(sum(left), most)
