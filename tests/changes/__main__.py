"""`make changes`: a living PostgreSQL, its changes as tables, and every part killed on the way.

Status 1 if a table is not as the database's.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.changes import change_campaign, kept, postgres


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.changes", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="make the file of the tests anew")
    given = parser.parse_args()
    if missing := postgres.missing():
        sys.exit(missing)
    if given.keep:
        kept.keep(given.rows, given.seed)
        return
    with tempfile.TemporaryDirectory(prefix="lakehead-changes-") as folder:
        found = change_campaign.run(Path(folder), rows=given.rows, seed=given.seed)
    print("\n".join(found) if found else "every table is as the database's")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
