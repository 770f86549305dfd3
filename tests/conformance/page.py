"""The page of results: a table of the suites, then every test that Kafka passes and we do not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.suites import SUITES, Suite

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
RESULTS = Path(__file__).parent / "results"

_HEAD = """# Conformance: results of foreign client suites

Integration tests of client libraries, run by `make conformance` against one node of Lakehead on a
local disk, with the results of Apache Kafka 4.2.0 on a machine of the same kind. Made from
`tests/conformance/results/`; failing tests are included. On 28 November 2026 the two cores had
other work, at load 3 to 13; tests that failed there and pass on Kafka were run again.

| Suite | Passed | Failed | Skipped | Seconds | Kafka passed | Kafka skipped | Kafka's seconds |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def page(results: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    """Return the page. Both maps go from a suite's name to the JSON that its script writes."""
    lines = [_row(suite, results, baselines) for suite in SUITES if suite.name in results]
    sections = [
        _section(suite, results[suite.name], baselines[suite.name])
        for suite in SUITES
        if suite.name in results
    ]
    return _HEAD + "\n".join(lines) + "\n" + "".join(sections)


def worse(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Return the tests that pass on Kafka and were run here with another end."""
    return [
        test
        for test, ours in result["tests"].items()
        if baseline["tests"].get(test, {}).get("result") == "passed" and ours["result"] != "passed"
    ]


def write() -> Path:
    """Write the page from the results that are kept."""
    kept = {
        suite.name: (RESULTS / f"{suite.name}.json", RESULTS / f"{suite.name}-kafka.json")
        for suite in SUITES
    }
    found = {name: paths for name, paths in kept.items() if all(path.exists() for path in paths)}
    results = {name: json.loads(ours.read_text()) for name, (ours, _) in found.items()}
    baselines = {name: json.loads(theirs.read_text()) for name, (_, theirs) in found.items()}
    PAGE.write_text(page(results, baselines))
    return PAGE


def _row(suite: Suite, results: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    ours, theirs = results[suite.name], baselines[suite.name]
    counted, kafkas = ours["summary"], theirs["summary"]
    cells = [
        f"{suite.name} ({ours['suite']})",
        *(str(counted[what]) for what in ("passed", "failed", "skipped")),
        str(ours["seconds"]),
        str(kafkas["passed"]),
        str(kafkas["skipped"]),
        str(theirs["seconds"]),
    ]
    return f"| {' | '.join(cells)} |"


def _section(suite: Suite, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    differing = worse(ours, theirs)
    skipped = [test for test, one in ours["tests"].items() if one["result"] == "skipped"]
    lines = [f"\n## {suite.name}\n"]
    if differing:
        lines += [
            "\nKafka passes these, and this broker does not:\n",
            "\n| Test | Here | Waits for | Message |\n| --- | --- | --- | --- |\n",
            *(_difference(suite, test, ours["tests"][test]) for test in sorted(differing)),
        ]
    else:
        lines.append("\nEvery test that Kafka passes passes here.\n")
    if skipped:
        lines.append(f"\nSkipped here: {', '.join(sorted(skipped))}.\n")
    return "".join(lines)


def _difference(suite: Suite, test: str, one: Mapping[str, Any]) -> str:
    said = str(one.get("note", "")).replace("|", "\\|").replace("\n", " ")[:160]
    return f"| {test} | {one['result']} | {suite.waits_for(test)} | {said} |\n"
