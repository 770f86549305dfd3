"""Generated schemas, judged by Java's libraries and by the registry: `make registry`.

Ends with status 1 if they disagree otherwise than by design. `--write` keeps the verdicts on a
sample, which the default tests compare without Java.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from bench.maven import MissingTool
from tests.registry.java_judge import judged
from tests.registry.verdicts import KINDS, disagreements, made_cases

_SAMPLE_CASES = {"AVRO": 120, "JSON": 60, "PROTOBUF": 6}
"""Each Protobuf file is a run of protoc."""


def sample(kind: str) -> Path:
    """Return where the kept verdicts on schemas of a kind are."""
    return Path(__file__).parents[1] / "fixtures" / "registry" / f"verdicts_{kind}.jsonl"


def main() -> int:
    """Run the comparison and print its figures. Return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.registry", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--cases", type=int, default=700, help="of each kind, three schemas each")
    parser.add_argument("--kind", choices=KINDS, action="append", help="this one alone")
    parser.add_argument("--write", action="store_true", help="keep the first verdicts as a sample")
    given = parser.parse_args()
    differing = 0
    for kind in given.kind or KINDS:
        cases = made_cases(kind, given.seed, given.cases)
        try:
            verdicts = judged(cases)
        except MissingTool as error:
            print(error, file=sys.stderr)
            return 1
        figures: Counter[str] = Counter()
        for case, verdict in zip(cases, verdicts, strict=True):
            figures.update("taken" if each["ok"] else "refused" for each in verdict["parsed"])
            for line in disagreements(case, verdict):
                figures["differs"] += 1
                print(line)
        print(
            f"{kind}: Java takes {figures['taken']} schemas, refuses {figures['refused']}; "
            f"the registry differs in {figures['differs']}"
        )
        differing += figures["differs"]
        if given.write:
            sample(kind).parent.mkdir(parents=True, exist_ok=True)
            pairs = zip(cases[: _SAMPLE_CASES[kind]], verdicts, strict=False)
            lines = [json.dumps({"case": case, "verdict": verdict}) for case, verdict in pairs]
            sample(kind).write_text("\n".join(lines) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
