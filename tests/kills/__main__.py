"""`make kills`: jobs killed at every step on a living cluster. Status 1 on any broken promise."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kills.kill_campaign import campaign
from tests.kills.kill_checks import faults, vectors_made


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="kills")
    parser.add_argument("--seconds", type=float, default=3600, help="no longer than this")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lakehead-kills-") as folder,
        campaign(Path(folder), given.seed) as running,
    ):
        running.let_loose(kills=given.count, seconds=given.seconds)
        running.settle()
        found, vectors = faults(running), vectors_made(running)
        tally, records = running.tally, len(running.history.acknowledged)
    for job, runs in sorted(tally.runs.items()):
        print(f"{job}: {runs} runs, {tally.kills[job]} killed")
    for refusal, times in tally.refusals.most_common(10):
        print(f"refused {times} times: {refusal}")
    print(f"{records} records of the table's topic acknowledged, {vectors} deletion vectors")
    print("\n".join(found) if found else "nothing is lost, nothing is there twice, nothing leaks")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
