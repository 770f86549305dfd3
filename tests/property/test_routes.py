"""The fan-out of records by a field, against a model: each is of one table, or of none."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.route import Route

TEXTS = ("created", "paid", "7", "true", "déjà vu")
KINDS = st.sampled_from([*TEXTS, 7, True, None, 7.5, ["created"], {"type": "created"}, "", "x"])


def text(kind: Any) -> str:
    if isinstance(kind, bool):
        return str(kind).lower()
    return str(kind) if isinstance(kind, str | int) else ""


@st.composite
def values(draw: st.DrawFn) -> tuple[bytes | None, str]:
    """A value and the text that it is routed by; empty for none."""
    form = draw(st.sampled_from(["object", "absent", "null", "broken", "other"]))
    if form == "object":
        kind = draw(KINDS)
        more = draw(st.dictionaries(st.sampled_from(["a", "event"]), st.integers(), max_size=2))
        return json.dumps({**more, "event": {"type": kind, "n": 1}}).encode(), text(kind)
    plain = {"absent": b'{"a": 1}', "null": None, "broken": b'{"event":', "other": b"[1]"}
    return plain[form], ""


@given(
    records=st.lists(values(), max_size=20),
    owners=st.lists(st.integers(0, 2), min_size=len(TEXTS), max_size=len(TEXTS)),
    has_rest=st.booleans(),
)
def test_each_record_is_of_one_table_or_a_fault_of_the_first(
    records: list[tuple[bytes | None, str]], owners: list[int], has_rest: bool
) -> None:
    named = tuple(
        tuple(one for one, owner in zip(TEXTS, owners, strict=True) if owner == number)
        or (f"never {number}",)
        for number in range(3)
    )
    each = (*named, ()) if has_rest else named
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array([value for value, _ in records], pa.binary())}
    )
    made = [
        Route(field="event.type", values=each, number=number).own(batch)
        for number in range(len(each))
    ]
    for number, (rows, _) in enumerate(made):
        wanted = [
            row
            for row, (_, name) in enumerate(records)
            if (name in each[number]) or (not each[number] and name not in TEXTS)
        ]
        assert rows.tolist() == wanted
    lost = [row for row, (_, name) in enumerate(records) if not has_rest and name not in TEXTS]
    assert [fault.row for fault in made[0][1]] == lost
    assert not any(faults for _, faults in made[1:])
