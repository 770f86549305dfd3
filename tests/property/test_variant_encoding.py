"""JSON becomes Variants that say the same, by PySpark's decoder, whatever lies beside them."""

import json
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from lakehead.lake.tables.values.variant_kernel import (
    BEYOND,
    SIZE_MAX,
    TOO_LARGE,
    TWICE,
    encode_variants,
)
from tests.support.repetitions import examples
from tests.support.variants import encoded

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TEXTS = st.one_of(NAMES, st.integers(0, 200).map("ä".__mul__))
INTEGERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.sampled_from([n + d for b in (7, 15, 31, 63) for n in (1 << b, -1 << b) for d in (-1, 0)]),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        INTEGERS,
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(NAMES, inner, max_size=6)),
    max_leaves=20,
)


def read(value: bytes, names: bytes) -> Any:
    with localcontext(prec=100):
        return VariantVal(value, names).toPython()


def as_expected(text: bytes) -> Any:
    """The value of a text: a decimal of at most 38 digits, and any other number a double."""

    def number(digits: str) -> Any:
        exact = Decimal(digits)
        _, figures, exponent = exact.as_tuple()
        is_exact = "e" not in digits.lower() and len(figures) <= 38 and int(exponent) >= -38
        return exact if is_exact else float(digits)

    return json.loads(text, parse_float=number)


@given(
    st.lists(st.tuples(VALUES, st.booleans(), st.sampled_from([None, 1])), min_size=1, max_size=5)
)
def test_a_variant_says_what_its_json_says(drawn: list[tuple[Any, bool, int | None]]) -> None:
    texts = [
        json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
        for value, is_ascii, indent in drawn
    ]
    found = encoded(texts)
    for text, (value, names, fault) in zip(texts, found, strict=True):
        assert fault == 0
        assert read(value, names) == as_expected(text)
        assert encoded([text]) == [(value, names, 0)]


DIGITS = rb"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,2})?"


@given(st.from_regex(DIGITS, fullmatch=True))
def test_any_number(text: bytes) -> None:
    ((value, names, fault),) = encoded([text])
    assert fault == 0
    assert read(value, names) == as_expected(text)


@settings(max_examples=examples(15), deadline=None)
@given(st.dictionaries(NAMES, st.integers(0, 9), min_size=200, max_size=400))
def test_an_object_of_many_fields_has_them_in_order(fields: dict[str, int]) -> None:
    ((value, names, _),) = encoded([json.dumps(fields).encode()])
    found = read(value, names)
    assert found == fields
    assert list(found) == sorted(fields, key=str.encode)


def test_faults_leave_their_neighbours_alone() -> None:
    texts = {
        b'{"a":1,"b":{"c":1,"c":2}}': TWICE,
        b'{"a":1,"\\u0061":1}': TWICE,
        b"[1,-1e400]": BEYOND,
        b'"' + b"x" * SIZE_MAX + b'"': TOO_LARGE,
        b"[" + b"1," * (SIZE_MAX // 5 * 2) + b"1]": TOO_LARGE,
    }
    good = b'{"a":[1e1,"x"]}'
    found = encoded([one for text in texts for one in (text, good)])
    assert [fault for _, _, fault in found[::2]] == list(texts.values())
    assert found[1::2] == encoded([good]) * len(texts)


def test_an_object_of_many_names_in_the_worst_order() -> None:
    fields = {f"{n:05}": 1 for n in range(20_000, 0, -1)}
    ((value, names, fault),) = encoded([json.dumps(fields).encode()])
    assert fault == 0
    assert read(value, names) == fields


def test_null_cells_are_empty() -> None:
    data, places = np.frombuffer(b"12,", np.uint8), np.array([2, 2], np.int64)
    value, ends, names, name_ends, _ = encode_variants(data, places, np.array([0, 1], np.uint8))
    assert (ends.tolist(), name_ends.tolist()) == ([0, 0, 2], [0, 0, 3])
    assert (value.tobytes(), names.tobytes()) == (b"\x0c\x0c", b"\x01\x00\x00")
