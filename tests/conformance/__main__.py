"""`make conformance`: each suite against a broker of its own, then the page `docs/conformance.md`.

Ends with status 1 if Kafka passes a test that fails here and waits for nothing.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lakehead_server import lakehead_server
from bench.process import free_port
from tests.conformance.page import RESULTS, worse, write
from tests.conformance.suites import PASSWORD, PROFILE, SUITES, USER, Suite


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
    """Run a suite, or some of its tests, keep the results, and return what is worse than Kafka
    without a reason.
    """
    baseline = suites / suite.baseline
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        found = Path(folder) / "found.json"
        port, scram_port = free_port(), free_port()
        listeners = f"PLAINTEXT://127.0.0.1:{port},SCRAM://127.0.0.1:{scram_port}"
        broker = lakehead_server(
            Path(folder),
            *PROFILE,
            *("--listeners", listeners),
            *suite.flags,
            port=port,
            environment={"LAKEHEAD_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD},
        )
        # Of franz-go's suite; the others take their addresses from the command line.
        scram = {
            "KGO_TEST_SCRAM_SEEDS": f"127.0.0.1:{scram_port}",
            "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}",
        }
        with broker as server:
            command = [
                str(suites / suite.script),
                server.bootstrap,
                *(tests or suite.tests),
                *suite.arguments,
                *("--json", str(found), "--against", str(baseline)),
            ]
            print(f"{suite.name}: against {server.bootstrap}", flush=True)
            subprocess.run([sys.executable, *command], env=os.environ | scram, check=False)
        ours, theirs = json.loads(found.read_text()), json.loads(baseline.read_text())
    _keep(suite, ours, only=bool(tests))
    shutil.copyfile(baseline, RESULTS / f"{suite.name}-kafka.json")
    return [test for test in worse(ours, theirs) if not suite.waits_for(test)]


def _keep(suite: Suite, found: dict[str, Any], *, only: bool) -> None:
    """Keep results, without this machine's paths. Those of some tests take the place of what is
    kept of these.
    """
    kept_at = RESULTS / f"{suite.name}.json"
    if only and kept_at.exists():
        kept = json.loads(kept_at.read_text())
        found = {**kept, "tests": kept["tests"] | found["tests"]}
        ends = [one["result"] for one in found["tests"].values()]
        found["summary"] = {end: ends.count(end) for end in found["summary"]}
    for test in found["tests"].values():
        if "note" in test:
            test["note"] = re.sub(r"(/[\w.@+-]+){2,}/", "…/", test["note"])
    kept_at.write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"suites: {', '.join(s.name for s in SUITES)}")
    parser.add_argument("--suites", type=Path, required=True, help="the folder of their scripts")
    parser.add_argument("--tests", nargs="*", default=(), help="these tests alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
