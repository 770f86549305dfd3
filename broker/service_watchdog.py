"""Report to systemd that the event loop turns, if the unit has a WatchdogSec (`sd_notify(3)`).

If the loop is stuck, for example in a call to a root volume that does not respond, systemd ends the
process and starts it again, as after a crash.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

_ALIVE = b"WATCHDOG=1"
_SHARE = 3
"""Said so often within the time; systemd advises twice at least."""


async def feed_watchdog(environment: Mapping[str, str]) -> None:
    """Say so for ever. Returns at once where no unit of systemd waits for this very process."""
    address = environment.get("NOTIFY_SOCKET", "")
    period_us = environment.get("WATCHDOG_USEC", "")
    wanted = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not address or not period_us.isdecimal() or wanted != str(os.getpid()):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as watchdog:
        while True:
            with suppress(OSError):  # its queue is full, or systemd is being restarted
                watchdog.sendto(_ALIVE, "\0" + address[1:] if address[0] == "@" else address)
            await asyncio.sleep(int(period_us) / 1e6 / _SHARE)
