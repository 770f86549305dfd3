"""Generated Avro schemas, judged by Java's library and by the registry: `make registry`.

Ends with status 1 if they disagree. `--write` keeps the verdicts on a sample, which the default
tests compare without Java.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from bench.maven import MissingTool
from tests.registry.avro_judge import judged
from tests.registry.verdicts import avro_cases, disagreements

SAMPLE = Path(__file__).parents[1] / "fixtures" / "registry" / "avro_verdicts.jsonl"
_SAMPLE_CASES = 120


def main() -> int:
    """Run the comparison and print its figures. Return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.registry", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--cases", type=int, default=700, help="chains of three schemas each")
    parser.add_argument("--write", action="store_true", help="keep the first verdicts as a sample")
    given = parser.parse_args()
    cases = avro_cases(given.seed, given.cases)
    try:
        verdicts = judged(cases)
    except MissingTool as error:
        print(error, file=sys.stderr)
        return 1
    figures: Counter[str] = Counter()
    differing = 0
    for case, verdict in zip(cases, verdicts, strict=True):
        figures.update("taken" if each["ok"] else "refused" for each in verdict["parsed"])
        for line in disagreements(case, verdict):
            differing += 1
            print(line)
    print(f"Java takes {figures['taken']} schemas, refuses {figures['refused']}")
    print(f"the registry differs in {differing}")
    if given.write:
        SAMPLE.parent.mkdir(parents=True, exist_ok=True)
        pairs = zip(cases[:_SAMPLE_CASES], verdicts, strict=False)
        lines = [json.dumps({"case": case, "verdict": verdict}) for case, verdict in pairs]
        SAMPLE.write_text("\n".join(lines) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
