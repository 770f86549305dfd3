"""When the nodes of this host logged an event first: `event.py NAME SINCE_MS`; 0 if never."""

import json
import subprocess
import sys


def main() -> None:
    """Look, and print the figures."""
    name, since_ms = sys.argv[1], int(sys.argv[2])
    command = ["journalctl", "--unit=lakehead", "--output=json", f"--since=@{since_ms // 1000}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    entries = [json.loads(line) for line in printed.splitlines()]
    times = [
        int(entry["__REALTIME_TIMESTAMP"]) // 1000
        for entry in entries
        if name in str(entry.get("MESSAGE", ""))
    ]
    told = {"first_ms": min(times, default=0), "count": len(times)}
    print("FIGURES " + json.dumps(told))


if __name__ == "__main__":
    main()
