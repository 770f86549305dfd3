"""`make equality`: Spark's Kafka source on Apache Kafka, our source, `lakehead.scan` and tables
give the same rows for the same traffic. Status 1 if they do not.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench.spark_kafka import spark_with_kafka
from tests.equality.both_sides import SeedResult, run_seed
from tests.equality.sized_run import PORTION_BYTES, run_portion


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="workloads")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--records", type=int, default=1200, help="records of each")
    parser.add_argument("--gb", type=float, help="at size instead: so many GB of keys and values")
    given = parser.parse_args()
    runs: list[Callable[[SparkSession, Path, int], SeedResult]]
    if given.gb is None:
        runs = [partial(run_seed, records=given.records)] * given.seeds
    else:
        whole = int(given.gb * 1e9)
        sizes = [PORTION_BYTES] * (whole // PORTION_BYTES) + [whole % PORTION_BYTES]
        runs = [partial(run_portion, size=size) for size in sizes if size]
    session = spark_with_kafka()
    faults: list[str] = []
    for seed, run in enumerate(runs, given.first):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lakehead-equality-") as folder:
            result = run(session, Path(folder), seed)
        faults += result.faults
        seconds = time.monotonic() - began
        print(f"seed {seed}: {result.reads} reads, {result.rows} rows, {seconds:.0f} s", flush=True)
    session.stop()
    print("\n".join(faults) if faults else "the same rows by every reader")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
