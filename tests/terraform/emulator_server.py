"""The process that serves moto with our changes: `python -m tests.terraform.emulator_server`.

Runs in the emulator's own environment. Prints its address on standard output, and ends when
standard input does, with the process that started it.
"""

import sys

from moto.server import ThreadedMotoServer

from tests.terraform import emulator_shim
from tests.terraform.emulator_parts import ShimMisfit


def main() -> int:
    try:
        emulator_shim.install()
    except ShimMisfit as error:
        print(f"The emulator does not start: {error}.", file=sys.stderr)
        return 1
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
