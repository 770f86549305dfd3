"""`make equality`: Spark's Kafka source on Apache Kafka, our source, `lake.scan` and tables give
the same rows for the same traffic. Status 1 if they do not.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.spark_kafka import spark_with_kafka
from tests.equality.both_sides import run_seed


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="workloads")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--records", type=int, default=1200, help="records of each")
    given = parser.parse_args()
    session = spark_with_kafka()
    faults: list[str] = []
    for seed in range(given.first, given.first + given.seeds):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lakehead-equality-") as folder:
            result = run_seed(session, Path(folder), seed, given.records)
        faults += result.faults
        seconds = time.monotonic() - began
        print(f"seed {seed}: {result.reads} reads, {result.rows} rows, {seconds:.0f} s", flush=True)
    session.stop()
    print("\n".join(faults) if faults else "the same rows by every reader")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
