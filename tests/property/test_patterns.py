"""Patterns match what Python's own matcher says, and take no longer for hostile ones."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.protocol.patterns import InvalidPattern, Pattern
from tests.support.repetitions import examples

atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "[a-c1-3]"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
    repeated = st.tuples(inner, quantifiers).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")
        | repeated
    )


patterns = st.recursive(atoms, nested, max_leaves=6)
texts = st.text(alphabet="abc1.", max_size=6)


@settings(max_examples=examples(300), deadline=None)
@given(patterns, texts)
def test_what_matches_is_what_python_says(pattern: str, text: str) -> None:
    wanted = re.compile(pattern, re.ASCII).fullmatch(text) is not None
    assert Pattern(pattern).matches(text) == wanted
    assert Pattern(f"^{pattern}$").matches(text) == wanted or "|" in pattern


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("", "", True),
        ("orders-.*", "orders-eu", True),
        ("orders-.*", "my-orders-eu", False),
        ("a|b", "b", True),
        ("^a|b$", "b", True),
        (r"tx\-[0-9]{3}", "tx-042", True),
        (r"[]a]+", "]a]", True),
        (r"[\]x]", "]", True),
        ("x{,3}", "x{,3}", True),
    ],
)
def test_patterns(pattern: str, text: str, is_match: bool) -> None:
    assert Pattern(pattern).matches(text) is is_match


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[a", "*a", "a**", r"\1", r"(a)\1", "(?=a)", "(?<!a)b", "a{3,2}"),
        *("a{1001}", "(a{500}){500}", "(" * 60 + ")" * 60, "\\", "[[:alpha:]]", "[a--b]", r"[\q]"),
    ],
)
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a*)*b", "a?" * 30 + "a" * 30 + "b"])
def test_a_hostile_pattern_takes_no_longer(pattern: str) -> None:
    hostile, text = Pattern(pattern), "a" * 2_000
    began = time.process_time()
    assert not hostile.matches(text)
    assert time.process_time() - began < 1.0
