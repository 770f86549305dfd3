"""`make fuzz`: every target for a while. A fault's input goes to tests/fixtures/fuzz."""

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.fuzz_campaign import run
from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).parent.parent / "fixtures" / "fuzz"


def _for(seconds: float) -> Callable[[int], bool]:
    """Return a condition that holds for so long from its first use on."""
    began: list[float] = []

    def goes_on(_tried: int) -> bool:
        now = time.monotonic()
        if not began:
            began.append(now)
        return now - began[0] < seconds

    return goes_on


def main() -> int:
    """Run the targets; return 1 if one has a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=TARGETS, default=list(TARGETS))
    given = parser.parse_args()
    faults = 0
    for name in given.only:
        done = run(name, given.seed, goes_on=_for(given.seconds))
        print(f"{name}: seed {given.seed}, {done.tried} inputs, {done.valid} valid", flush=True)
        if done.fault is not None:
            faults += 1
            file = FOUND / f"{name}-{hashlib.sha256(done.fault.data).hexdigest()[:12]}.bin"
            file.write_bytes(done.fault.data)
            print(f"  FAULT: {done.fault.problem}; the input is in {file.name}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
