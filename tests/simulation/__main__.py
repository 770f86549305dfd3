"""Long runs of the simulated worlds: `make sim SEEDS=n`, or `make sim SEED=n` to watch one."""

import argparse
import os
import sys

from tests.simulation.campaign import Kind, run_many, watch_one
from tests.simulation.wals import WALS


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one and print its trace")
    parser.add_argument("--wal", choices=sorted(WALS), help="only this write-ahead log")
    parser.add_argument("--clusters", action="store_true", help="clusters, with all but sockets")
    parser.add_argument("--encrypted", action="store_true", help="objects and logs are encrypted")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    kind = Kind(options.wal, is_cluster=options.clusters, is_encrypted=options.encrypted)
    if options.seed is not None:
        return watch_one(options.seed, kind)
    return run_many(options.first, options.seeds, kind, options.workers)


if __name__ == "__main__":
    sys.exit(main())
