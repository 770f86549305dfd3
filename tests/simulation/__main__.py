"""Long runs of the simulated worlds: `make sim SEEDS=n`, or `make sim SEED=n` to watch one."""

import argparse
import os
import sys

from tests.simulation.campaign import run_many, watch_one
from tests.simulation.wals import WALS


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one and print its trace")
    parser.add_argument("--wal", choices=sorted(WALS), help="only this write-ahead log")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return watch_one(options.seed, options.wal)
    return run_many(options.first, options.seeds, options.wal, options.workers)


if __name__ == "__main__":
    sys.exit(main())
