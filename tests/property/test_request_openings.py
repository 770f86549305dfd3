"""A request that repeats the opening of the one before it on its connection has the header that
reading it gives."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker import api
from lakehead.broker.network.dispatcher import RequestOpening
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import read_header
from tests.support.repetitions import examples

REGISTRY = api.registry()
PRINCIPAL = object()
CONNECTION: Any = SimpleNamespace(principal=PRINCIPAL)
CONTEXT: Any = SimpleNamespace(principal=PRINCIPAL)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    key, version = draw(st.sampled_from([0, 0, 0, 1, 3])), draw(st.integers(3, 14))
    client = draw(st.sampled_from([b"\xff\xff", b"\0\0", b"\0\3abc", b"\0\3abd", b"\0\2ab"]))
    head = (
        key.to_bytes(2, "big")
        + version.to_bytes(2, "big")
        + draw(st.binary(min_size=4, max_size=4))
    )
    tags = draw(st.sampled_from([b"\0", b"\0", b"\0", b"\1\5\1x", b""]))
    return head + client + tags + draw(st.binary(max_size=8))


@settings(max_examples=examples(300))
@given(frames(), frames(), st.binary(min_size=4, max_size=4))
def test_a_repeated_opening_is_the_header_that_is_read(
    first: bytes, other: bytes, ids: bytes
) -> None:
    try:
        header = read_header(memoryview(first), REGISTRY)
    except (MalformedFrame, UnsupportedVersion):
        return
    route = REGISTRY.route(header.key)
    assert route is not None
    if header.proof:
        return  # of a node: it is never kept
    opening = RequestOpening(first[: header.body], header, route, CONTEXT)
    again = first[:4] + ids + first[8:]
    assert opening.is_repeated(memoryview(again), CONNECTION)
    for frame in (again, other, other[: header.body - 1]):
        if opening.is_repeated(memoryview(frame), CONNECTION):
            assert header.repeated(memoryview(frame)) == read_header(memoryview(frame), REGISTRY)
    stranger: Any = SimpleNamespace(principal=object())
    assert not opening.is_repeated(memoryview(again), stranger)
