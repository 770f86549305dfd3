"""`make chaos`: a cluster of real processes under faults, judged by the history checker.

As root (network namespaces) networks are cut, with libfaketime clocks jump, with versitygw the
store fails; what cannot be had is named in the report. Ends with status 1 on any anomaly.
"""

import argparse
import sys
from pathlib import Path

from lakehead.broker.cluster.read_replicas import TailSource
from tests.checker import chaos_run, namespaces, report


def main() -> None:
    """Run as the arguments say."""
    options = _options()
    if not namespaces.obstacle():
        namespaces.enter()
    result = chaos_run.run(options)
    print(report.text(result))
    print(f"The report: {options.folder / 'report.html'}")
    sys.exit(bool(result.anomalies))


def _options() -> chaos_run.Options:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long faults fall")
    parser.add_argument("--seed", type=int, default=1, help="which faults, when")
    parser.add_argument("--wal", choices=("block", "object"), default="block")
    parser.add_argument("--store", choices=("s3", "file"), default="s3", help="file: cannot fail")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100, help="records/s of each of 3 producers")
    parser.add_argument(
        "--security",
        choices=("", "SASL_SSL"),
        default="",
        help="SASL_SSL: names, access rules and quotas for clients, mutual TLS between nodes",
    )
    parser.add_argument("--encrypted", action="store_true", help="encryption at rest by the nodes")
    parser.add_argument(
        "--tables",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="bring the topics into Delta and Iceberg tables meanwhile",
    )
    parser.add_argument(
        "--tail",
        choices=[source.value for source in TailSource],
        default=TailSource.LEADER.value,
        help="from where consumers of a zone get the newest records: replica.read.tail",
    )
    parser.add_argument("--report", type=Path, help="a folder (default: chaos-WAL-SEED)")
    given = parser.parse_args()
    return chaos_run.Options(
        seconds=given.seconds,
        seed=given.seed,
        wal=given.wal,
        folder=given.report or Path(f"chaos-{given.wal}-{given.seed}"),
        store=given.store,
        nodes=given.nodes,
        records_per_s=given.rate,
        security=given.security,
        is_encrypted=given.encrypted,
        has_tables=given.tables,
        tail=TailSource(given.tail),
    )


if __name__ == "__main__":
    main()
