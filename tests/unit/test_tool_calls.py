"""The comparison of Kafka's tools: what is hidden of their output, and what never is."""

import pytest

from bench.apache_kafka.tools import MAIN_CLASSES
from tests.tools.__main__ import CALLS
from tests.tools.call import Call
from tests.tools.comparison import DIFFERENT, KNOWN_DIFFERENCE, SAME, Compared
from tests.tools.differences import KNOWN, Difference
from tests.tools.masks import masked
from tests.tools.one_jvm import Ran
from tests.tools.scenes import SCENES
from tests.tools.tool_page import page


def ran(output: str, status: int = 0) -> Ran:
    return Ran(status=status, output=output, errors="")


def compared(theirs: Ran, ours: Ran, line: str = "kafka-topics --list") -> Compared:
    return Compared(call=Call(line=line), kafka=theirs, lakehead=ours)


def test_ids_ports_times_and_widths_do_not_count() -> None:
    theirs = "Topic: t   TopicId: FhWsH42DQ3OTkZ7nrG-LEw\n127.0.0.1:9092 (id: 1)\n-----\n"
    ours = "Topic: t\tTopicId: 0b0eV2YvR1yXxXoD4m2S9A\n127.0.0.1:41233 (id: 1)\n------\n"
    assert masked(theirs) == masked(ours)
    theirs = "modern MS87VfBUTce3hD6GlX-eFw /127.0.0.1 consumer-modern-1 1\n"
    ours = "modern  6OiUehgnTsegqn16QtnyIg /127.0.0.1 consumer-modern-1  1\n"
    assert masked(theirs) == masked(ours)
    assert masked(theirs) != masked(ours.replace("modern-1", "modern-2"))
    assert masked("read:0:31") != masked("read:0:30")
    assert masked("31 records, 0.5 ms", hides_figures=True) == ["N records, N ms"]


def test_the_order_of_lines_counts_where_a_call_says_so() -> None:
    assert masked("b\na\n") == masked("a\nb\n")
    assert masked("b\na\n", is_ordered=True) != masked("a\nb\n", is_ordered=True)


def test_another_status_is_a_difference() -> None:
    assert compared(ran("a"), ran("a")).verdict == SAME
    assert compared(ran("a"), ran("a", status=1)).verdict == DIFFERENT


def test_a_known_difference_hides_only_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Difference(calls="--list$", lines="^__", reason="There is no such topic.")
    monkeypatch.setattr("tests.tools.comparison.KNOWN", (known,))
    internal = ran("__share\na\n")
    assert compared(internal, ran("a\n")).verdict == KNOWN_DIFFERENCE
    assert compared(internal, ran("b\n")).verdict == DIFFERENT
    assert compared(internal, ran("a\n"), "kafka-topics --describe").verdict == DIFFERENT
    shown = page([compared(internal, ran("a\n")), compared(ran("a"), ran("b"))])
    assert "| There is no such topic. |" in shown
    assert "**differs**: `- a`; `+ b`" in shown


def test_words_may_differ_and_the_error_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Difference(calls="x", lines="Exception", reason="Words.", is_wording=True)
    monkeypatch.setattr("tests.tools.comparison.KNOWN", (known,))
    theirs = ran("org.apache.OddException: It is odd.\n")
    other = ran("org.apache.OddException: 3 is not even.\n")
    assert compared(theirs, other, "kafka-x").verdict == KNOWN_DIFFERENCE
    even = ran("org.apache.EvenException: It is odd.\n")
    assert compared(theirs, even, "kafka-x").verdict == DIFFERENT


def test_every_call_can_be_made_and_every_difference_is_about_one() -> None:
    for call in CALLS:
        assert call.tool in MAIN_CLASSES
        assert call.scene == "" or call.scene in SCENES
        assert "--bootstrap-server" in call.arguments("host:1", {})
    for difference in KNOWN:
        assert any(difference.is_about(call.line) for call in CALLS), difference.calls
