"""`make conformance`: each suite against a broker of its own, then the page `docs/conformance.md`.

Ends with status 1 if Kafka passes a test that fails here and waits for nothing.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.lakehead_server import lakehead_server
from tests.conformance.page import RESULTS, worse, write
from tests.conformance.suites import PROFILE, SUITES, Suite


def main() -> None:
    """Run as the arguments say."""
    given = _arguments()
    RESULTS.mkdir(exist_ok=True)
    broken = [
        f"{suite.name}: {test}"
        for suite in SUITES
        if not given.only or suite.name in given.only
        for test in _run(suite, given.suites, given.tests)
    ]
    print(f"The page: {write()}")
    if broken:
        print("Kafka passes these, this broker does not:", *broken, sep="\n  ")
    sys.exit(bool(broken))


def _run(suite: Suite, suites: Path, tests: Sequence[str]) -> list[str]:
    """Run a suite, keep its results unless only some tests were asked for, and return what is worse
    than Kafka without a reason.
    """
    baseline = suites / suite.baseline
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        found = Path(folder) / "found.json"
        with lakehead_server(Path(folder), *PROFILE, *suite.flags) as server:
            command = [
                str(suites / suite.script),
                server.bootstrap,
                *tests,
                *suite.arguments,
                *("--json", str(found), "--against", str(baseline)),
            ]
            print(f"{suite.name}: against {server.bootstrap}", flush=True)
            subprocess.run([sys.executable, *command], check=False)
        ours, theirs = json.loads(found.read_text()), json.loads(baseline.read_text())
        if not tests:
            shutil.copy(found, RESULTS / f"{suite.name}.json")
            shutil.copy(baseline, RESULTS / f"{suite.name}-kafka.json")
    return [test for test in worse(ours, theirs) if not suite.waits_for(test)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"suites: {', '.join(s.name for s in SUITES)}")
    parser.add_argument("--suites", type=Path, required=True, help="the folder of their scripts")
    parser.add_argument("--tests", nargs="*", default=(), help="these tests alone, nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
