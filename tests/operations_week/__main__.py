"""`make week`: an operator's week on one cluster in minutes; status 1 if clients noticed it."""

import argparse
import sys

from tests.operations_week.week import Options, run


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.operations_week", description=__doc__)
    parser.add_argument("--pause", type=float, default=10, help="seconds of each condition")
    parser.add_argument("--rate", type=float, default=200, help="records/s of each of 2 producers")
    arguments = parser.parse_args()
    report = run(Options(pause_s=arguments.pause, records_per_s=arguments.rate))
    print(report.text())
    sys.exit(bool(report.anomalies))


if __name__ == "__main__":
    main()
