"""Regular expressions of consumers: RE2's, on whole names, and none that explodes."""

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.topic_regex import check_regex, matching_topics
from lakehead.broker.protocol.errors import KafkaError

TOPICS = ("orders", "orders-eu", "my-orders-eu", "Été")


def test_a_topic_matches_as_a_whole() -> None:
    found = matching_topics(["orders", "orders-.*", "a|my.*", "(?i)ORDERS", ".t."], TOPICS, None)
    assert found == {
        "orders": {"orders"},
        "orders-.*": {"orders-eu"},
        "a|my.*": {"my-orders-eu"},
        "(?i)ORDERS": {"orders"},
        ".t.": {"Été"},
    }


def test_hidden_topics_are_left_out() -> None:
    found = matching_topics([".*"], TOPICS, lambda topic: topic.endswith("eu"))
    assert found == {".*": {"orders-eu", "my-orders-eu"}}


@pytest.mark.parametrize(
    "regex", ["[", "a)(b", "*a", "(?=a)b", "(?<!a)b", r"(a)\1", "a{1001}", "(a{1000}){1000}"]
)
def test_what_re2_does_not_take_is_refused(regex: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_regex(regex)
    assert caught.value.code is ErrorCode.invalid_regular_expression
    assert f"`{regex}` is not a valid regular expression" in str(caught.value)


def test_a_pattern_that_keeps_a_backtracking_matcher_busy_ends() -> None:
    """Python's own matcher would take 2^200 steps."""
    assert matching_topics(["(x+x+)+y"], ["x" * 200], None) == {"(x+x+)+y": frozenset()}
