"""When this host sees the disk of an EBS volume: `device.py VOLUME SECONDS`."""

import json
import sys
import threading

from lakehead.storage.aws.volumes import NvmeDevices
from lakehead.storage.clock import SystemClock


def main() -> None:
    """Wait, and print the figures."""
    volume, seconds = sys.argv[1], float(sys.argv[2])
    clock, pause, path = SystemClock(), threading.Event(), NvmeDevices().path(volume)
    began = clock.monotonic()
    while not path.exists():
        if clock.monotonic() - began > seconds:
            raise TimeoutError(f"{path} did not come within {seconds:.0f} s")
        pause.wait(0.01)
    print("FIGURES " + json.dumps({"seen_ms": clock.now_ms()}))


if __name__ == "__main__":
    main()
