"""`python -m tests.terraform.recording`: record what brokers, Spark and Airflow ask of S3, and
compare it with what is committed; `--write` writes the file anew. A name records that part only.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.s3_server import NotBuilt, running_server
from tests.terraform.recording import recorded_steps
from tests.terraform.recording.calls import Needs, distinct, read_needs, write_needs
from tests.terraform.recording.s3_door import recorded

WHO: dict[str, Callable[[recorded_steps.Place], None]] = {
    "broker": recorded_steps.of_broker,
    "spark": recorded_steps.of_spark,
    "airflow": recorded_steps.of_airflow,
}


def record(who: str) -> Needs:
    """Run one's steps, and return what it needed."""
    with (
        tempfile.TemporaryDirectory(prefix="lakehead-recording-") as folder,
        running_server(Path(folder) / "s3") as server,
        recorded(server.endpoint) as door,
    ):
        WHO[who](recorded_steps.Place(server=server, bucket=server.bucket, door=door))
        return distinct(door.calls)


def main() -> int:
    """Record, and compare or write. Status 1: what is committed is not current."""
    parser = argparse.ArgumentParser(description="Record which permissions are needed.")
    parser.add_argument("who", nargs="*", help=f"of {', '.join(WHO)}; all, if none")
    parser.add_argument("--write", action="store_true", help="write what is found")
    given = parser.parse_args()
    try:
        found = {who: record(who) for who in given.who or WHO}
    except NotBuilt as reason:
        print(reason, file=sys.stderr)
        return 1
    if given.write:
        write_needs(read_needs() | found)
        return 0
    known, status = read_needs(), 0
    for who, needs in found.items():
        now = {need.area for need in needs}
        before = {need.area for need in known.get(who, {})}
        for need in sorted(now ^ before):
            print(f"{who}: {'new' if need in now else 'not any more'}: {need.line}")
            status = 1
    if status:
        print("What is asked of S3 has changed: look at the policies, then 'make policy-record'.")
    return status


if __name__ == "__main__":
    sys.exit(main())
