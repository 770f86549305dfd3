"""The log of a process: a line for each event, as logfmt or JSON."""

import json
import subprocess
import sys

import pytest

from lakehead.broker.observability.event_log import LOG_FORMATS, configure_logs
from lakehead.storage.errors import SettingsError

SCRIPT = """
import sys
import structlog
from lakehead.broker.observability.event_log import configure_logs
configure_logs("info", 3, log_format=sys.argv[1])
log = structlog.get_logger()
log.debug("unseen")
log.info("node_ready", port=9092, uri='a "b" c=d', reason="two\\nlines", empty="",
         **{"two words": True})
try:
    raise ValueError("x")
except ValueError:
    log.exception("node_failed", node_id=4)
"""


def lines(log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format], check=True, capture_output=True, text=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_logfmt_is_a_line_an_event_whatever_its_values_hold() -> None:
    ready, failed = lines("logfmt")
    when, _, rest = ready.partition(" ")
    assert when.startswith("timestamp=2")
    assert rest == (
        "level=info node_id=3 event=node_ready port=9092 "
        r'uri="a \"b\" c=d" reason=two\nlines empty= two_words=true'
    )
    assert "level=error node_id=4 event=node_failed" in failed
    assert "ValueError: x" in failed


def test_json_is_an_object_a_line_with_the_same_keys_in_front() -> None:
    ready, failed = map(json.loads, lines("json"))
    assert list(ready)[:4] == ["timestamp", "level", "node_id", "event"]
    assert ready["reason"] == "two\nlines"
    assert ready["two words"] is True
    assert (failed["event"], failed["node_id"], failed["level"]) == ("node_failed", 4, "error")
    assert "ValueError: x" in failed["exception"]


def test_another_format_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match=", ".join(LOG_FORMATS)):
        configure_logs("info", log_format="xml")


FULL = """
import sys
import structlog
from lakehead.broker.observability.event_log import configure_logs
sys.stderr = open("/dev/full", "w", buffering=1)
configure_logs("info", 3)
for number in range(1000):
    structlog.get_logger().warning("store_unavailable", attempt=number, error="x" * 100)
print("it went on")
sys.stderr = sys.__stderr__
"""


def test_where_the_log_cannot_be_written_events_are_lost_and_work_goes_on() -> None:
    """A full disk ended the upload that reported it, and the node with it."""
    done = subprocess.run([sys.executable, "-c", FULL], check=False, capture_output=True, text=True)
    assert done.stdout == "it went on\n", done.stderr
