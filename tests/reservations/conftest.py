"""The machines of the tests here: booted once, by what asks for them first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.process import free_port
from tests.reservations.guests import DiskServer, Host, Image
from tests.reservations.kernels import Unavailable, newest_kernel, stable_kernel

NAMES = ("a", "b", "c")


@dataclass(slots=True)
class Rig:
    """The disk's server and the machines that have the disk. `ports` lead to them from here."""

    image: Image
    folder: Path
    server: DiskServer
    hosts: dict[str, Host] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in NAMES})

    def boot(self, name: str) -> Host:
        """Start a machine, or start it again: to the disk it is who it was."""
        host = Host(self.image, self.folder, name, NAMES.index(name), self.ports[name])
        self.hosts[name] = host
        return host

    def end(self) -> None:
        """End all machines."""
        for host in self.hosts.values():
            host.kill()
        self.server.machine.kill()


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The disk's server and three machines that have its disk."""
    if "LAKEHEAD_GUESTS" not in os.environ:
        pytest.skip("needs machines: make reservations")
    try:
        image = Image.build(newest_kernel(), sys.executable, has_nvme=True)
    except Unavailable as reason:
        print(f"\nNVMe is left out: {reason}")
        image = Image.build(stable_kernel(), sys.executable, has_nvme=False)
    folder = tmp_path_factory.mktemp("guests")
    rig = Rig(image, folder, DiskServer(image, folder, NAMES))
    try:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            list(pool.map(rig.boot, NAMES))
        print(f"\nLinux {image.kernel.version}, {len(NAMES)} machines on one disk")
        yield rig
    finally:
        rig.end()
