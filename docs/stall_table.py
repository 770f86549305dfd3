"""Writes the table of docs/operations.md from the results of `make stalls`: for each API the
request that held the event loop longest.

    python docs/stall_table.py RESULTS

RESULTS has a JSON object in each line: api, filled, bytes, loop_s.
"""

import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "operations.md"
BEGIN, END = "<!-- stalls: begin -->\n", "<!-- stalls: end -->\n"
HEAD = "| API | Filled | Bytes | Loop held, ms |\n| --- | --- | --- | --- |\n"


def rows(lines: list[dict[str, Any]]) -> list[str]:
    """Return a row for each API, by name: the longest."""
    longest: dict[str, dict[str, Any]] = {}
    for line in lines:
        name = line["api"].split(" v")[0]
        known = longest.get(name)
        if known is None or line["loop_s"] > known["loop_s"]:
            longest[name] = line
    return [
        f"| {line['api']} | `{line['filled']}` | {line['bytes']:,} | {line['loop_s'] * 1e3:.0f} |\n"
        for _, line in sorted(longest.items())
    ]


def with_table(page: str, table: str) -> str:
    """Return the page with another table between its marks. Raises ValueError without them."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"{PAGE.name} has no place for the table")
    return before + mark + table + end + after


def main() -> None:
    """Write the table."""
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(with_table(PAGE.read_text(), HEAD + "".join(rows(lines))))


if __name__ == "__main__":
    main()
