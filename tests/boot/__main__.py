"""`make boot-test`: an example of Terraform's, applied to an emulator, boots for real.

Debian with cloud-init gets the user data that the emulator's EC2 has for an instance, installs,
starts its nodes, and is written to; a node hangs and its neighbour takes over; a stop is clean; it
is booted anew. In a guest with a block WAL, or (`container`) in containers with an object WAL, of
which one dies. Ends with status 0 and a plain reason where that cannot be had.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench import s3_server
from bench.own_environment import NotInstalled, environment_of
from tests.boot.cloud import make_wheels
from tests.boot.image import Unavailable, check_tools, image
from tests.boot.machine import WITH_PARENT
from tests.terraform.terraform import NotHere, mirror, program

ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""Before a command: it has a network and processes of its own, and they end with it."""


def main() -> int:
    """Fetch what is needed, then run the scenario in a network that leads nowhere."""
    with tempfile.TemporaryDirectory(prefix="lakehead-boot-") as folder:
        try:
            check_tools()
            program()
            mirror()
            image()
            environment_of("aws-emulator", "emulator")
            s3_server.program()
            make_wheels(Path(folder))
        except (Unavailable, NotHere, NotInstalled, s3_server.NotBuilt) as reason:
            print(f"boot-test: skipped, since nothing can be booted here: {reason}")
            return 0
        inside = [sys.executable, "-m", "tests.boot.scenario", folder, *sys.argv[1:]]
        return subprocess.run([*WITH_PARENT, *ALONE, *inside], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
