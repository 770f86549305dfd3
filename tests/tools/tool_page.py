"""The page `docs/kafka-tools.md`: every call, with *same* or what differs and why."""

from collections.abc import Sequence
from pathlib import Path

from bench.apache_kafka.jars import KAFKA_VERSION
from tests.tools.comparison import DIFFERENT, KNOWN_DIFFERENCE, SAME, Compared

PAGE = Path(__file__).parents[2] / "docs" / "kafka-tools.md"

_HEAD = """<!-- Made by `make tools`. -->

# Kafka's command-line tools

The command-line tools of Apache Kafka {version}, run in this order on one node of Lakehead and on
one of Apache Kafka. Both have default settings, except `num.partitions=4` and the needs of a single
node; the first call stands for Kafka's formatting. The comparison covers exit status, output and
errors, without ids, times, ports, sizes of logs, the widths of columns, stack traces and measured
figures. Calls with a scene run while a member of a group reads, or while a transaction is open.
`tests/tools/differences.py` has all reasons.

Of {count} calls, {same} have the same output and {known} differ only as explained{different}.

| Call | Scene | Outcome |
| --- | --- | --- |
"""


def write(compared: Sequence[Compared]) -> Path:
    """Write the page, and return its path."""
    PAGE.write_text(page(compared))
    return PAGE


def page(compared: Sequence[Compared]) -> str:
    """Return the page."""
    verdicts = [one.verdict for one in compared]
    different = verdicts.count(DIFFERENT)
    head = _HEAD.format(
        version=KAFKA_VERSION,
        count=len(compared),
        same=verdicts.count(SAME),
        known=verdicts.count(KNOWN_DIFFERENCE),
        different=f", and {different} differ without a reason" if different else "",
    )
    return head + "".join(_row(one) for one in compared)


def _row(one: Compared) -> str:
    match one.verdict:
        case "same":
            outcome = "*same*"
        case "different":
            outcome = "**differs**: " + _shown(one.changes)
        case _:
            reasons = (difference.reason for difference in one.explaining)
            outcome = " ".join(dict.fromkeys(reasons))
    return f"| `{_cell(one.call.line)}` | {one.call.scene} | {outcome} |\n"


def _shown(changes: Sequence[str]) -> str:
    cut = "; ".join(f"`{_cell(line)[:140]}`" for line in changes[:4])
    return cut + (f"; and {len(changes) - 4} more lines" if len(changes) > 4 else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
