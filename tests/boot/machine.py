"""A machine that an instance is booted on, and how the test looks into it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it ends with whoever started it, however that ends."""
COMMAND_S = 320.0
_POLL_S = 0.2


class MachineFailed(Exception):
    """The machine did not do what it should have. The message has the end of what it said."""


class Machine(Protocol):
    """What runs."""

    def command(self, line: str, *, timeout_s: float = COMMAND_S) -> tuple[int, str]:
        """Run a line as root and return its status and what it said. Raises MachineFailed."""

    def check_alive(self) -> None:
        """Raises MachineFailed."""

    def kill(self) -> None:
        """End it as a machine loses its power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """An EBS volume: a file that is a machine's disk, whose serial number is the volume's id."""

    volume_id: str
    file: Path

    @property
    def serial(self) -> str:
        return self.volume_id.replace("-", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a machine is made of. `ports` are those that others reach at `address`."""

    name: str
    instance_id: str
    address: str
    mac: str
    ports: Sequence[int]
    cores: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of each of its services: where this test's S3 and EC2 are."""
    volumes: Sequence[Volume] = ()


def wait_for_shell(machine: Machine, deadline_s: float) -> None:
    """Return when the machine runs commands. Raises MachineFailed."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        machine.check_alive()
        with contextlib.suppress(MachineFailed):
            if machine.command("true", timeout_s=5.0)[0] == 0:
                return
        time.sleep(_POLL_S)
    raise MachineFailed(f"no shell after {deadline_s:.0f} s")


def checked(machine: Machine, line: str) -> str:
    """Run a line that has to succeed and return what it said. Raises MachineFailed."""
    status, said = machine.command(line)
    if status:
        raise MachineFailed(f"{line}: status {status}: {said[-2000:]}")
    return said


def until(machine: Machine, line: str, deadline_s: float) -> str:
    """Run a line again and again until it succeeds. Raises MachineFailed."""
    deadline = time.monotonic() + deadline_s
    while True:
        machine.check_alive()
        status, said = machine.command(line)
        if status == 0:
            return said
        if time.monotonic() > deadline:
            raise MachineFailed(f"{line}: not in {deadline_s:.0f} s: {said[-2000:]}")
        time.sleep(_POLL_S)
