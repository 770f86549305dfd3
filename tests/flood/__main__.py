"""`make flood`: hostile clients by the thousand beside an honest one. Status 1: the goal is missed.

The goal: the 99th percentile of the honest client at most doubles, the node keeps within its
memory, no node is fenced. Times are in ms.
"""

import argparse
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.flood.flood_run import HEAD, Options, flood


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.flood", description=__doc__)
    parser.add_argument("--idle", type=int, default=5000, help="connections that send nothing")
    parser.add_argument("--slow", type=int, default=1000, help="that send a byte each second")
    parser.add_argument("--deaf", type=int, default=1000, help="that read no response")
    parser.add_argument("--handshakes", type=int, default=200, help="that repeat TLS handshakes")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument(
        "--least-ms", type=float, default=5, help="a percentile before counts as at least this"
    )
    parser.add_argument("--folder", type=Path, help="keep the cluster here, with its logs")
    given = parser.parse_args()
    counts = {kind: getattr(given, kind) for kind in ("idle", "slow", "deaf", "handshakes")}
    options = Options(
        counts={kind: count for kind, count in counts.items() if count},
        seconds=given.seconds,
        least_s=given.least_ms / 1000,
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        folder = given.folder or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="lakehead-flood-")
        )
        print(HEAD, flush=True)
        result = stack.enter_context(flood(Path(folder), options)).run()
    print("\n".join(result.missed) if result.missed else "The goal is met.")
    sys.exit(bool(result.missed))


if __name__ == "__main__":
    main()
