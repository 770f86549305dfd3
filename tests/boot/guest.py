"""A guest that takes itself for an instance of EC2: QEMU, its disks, its network, a way in.

QEMU connects for the guest from this machine's side, so a guest reaches whatever listens in the
network that the test has for itself. The shell on the second serial port runs one command at a
time.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from tests.boot.image import Image, run
from tests.boot.machine import COMMAND_S, WITH_PARENT, Hardware, MachineFailed, Volume

# Under load an emulated timer is late, which the kernel takes for a broken one.
KERNEL_LINE = "root=LABEL=rootfs console=ttyS0 quiet panic=-1 no_timer_check systemd.show_status=0"
SPARE_PORTS = 4
_MEMORY_MIB = 2048


@dataclass(slots=True)
class Guest:
    """A guest that runs, or has run."""

    hardware: Hardware
    folder: Path
    process: subprocess.Popen[bytes]
    _shell: socket.socket | None = None

    def command(self, line: str, *, timeout_s: float = COMMAND_S) -> tuple[int, str]:
        """Run a line in the guest and return its status and what it said. Raises MachineFailed."""
        assert "\n" not in line
        shell = self._shell or socket.socket(socket.AF_UNIX)
        shell.settimeout(timeout_s)
        said = b""
        try:
            if self._shell is None:
                shell.connect(str(self.folder / "shell"))
                self._shell = shell
            shell.sendall(line.encode() + b"\n")
            while not (said.endswith(b"\n") and said.rpartition(b"\n@@")[1]):
                said += shell.recv(65536) or self._end()
        except OSError as error:
            shell.close()
            self._shell = None
            raise MachineFailed(f"{line}: no answer in {timeout_s:.0f} s ({error})") from error
        text, _, status = said.decode(errors="replace").rpartition("\n@@")
        return int(status), text.strip()

    def attach(self, volume: Volume, port: int) -> None:
        """Plug a disk in while the guest runs, as AttachVolume does."""
        name = volume.serial
        self._control("blockdev-add", **_drive(volume.file, name))
        self._control(
            "device_add", driver="nvme", drive=name, serial=name, id=f"{name}-disk",
            bus=f"port{port}",
        )  # fmt: skip

    def kill(self) -> None:
        """End it as a machine loses its power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Return what QEMU said, and the end of the console."""
        files = [self.folder / name for name in ("qemu", "console")]
        return "\n".join(
            one.read_text(errors="replace")[-3000:] for one in files if one.exists()
        ).strip()

    def _control(self, command: str, **arguments: Any) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(COMMAND_S)
            control.connect(str(self.folder / "control"))
            lines = control.makefile("rw")
            lines.readline()
            for step in (
                {"execute": "qmp_capabilities"},
                {"execute": command, "arguments": arguments},
            ):
                lines.write(json.dumps(step) + "\n")
                lines.flush()
                while "event" in (answer := json.loads(lines.readline())):
                    pass
                if "error" in answer:
                    raise MachineFailed(f"{command}: {answer['error']}")

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise MachineFailed(f"QEMU ended with {self.process.returncode}: {self.said()}")

    def _end(self) -> bytes:
        raise OSError("the guest has ended")


@contextlib.contextmanager
def booted(
    image: Image, hardware: Hardware, folder: Path, peers: Sequence[str] = ()
) -> Iterator[Guest]:
    """Start a guest on a new disk; it is killed at the end."""
    folder.mkdir(parents=True)
    disk = folder / "root.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, disk)
    with (folder / "qemu").open("wb") as said:
        process = subprocess.Popen(
            _qemu(image, hardware, folder, disk, peers),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    guest = Guest(hardware, folder, process)
    try:
        yield guest
    finally:
        guest.kill()


def _qemu(
    image: Image, hardware: Hardware, folder: Path, disk: Path, peers: Sequence[str]
) -> list[str]:
    variables = " ".join(
        f"systemd.setenv={name}={value}" for name, value in hardware.environment.items()
    )
    network, host, names = _network(hardware.address, peers)
    card = f"net={network},host={host},dns={names},dhcpstart={hardware.address}"
    identity = f"ec2{str(uuid5(NAMESPACE_DNS, hardware.instance_id))[3:]}"
    forwarded = "".join(
        f",hostfwd=tcp:{hardware.address}:{port}-{hardware.address}:{port}"
        for port in hardware.ports
    )
    volumes = [
        part
        for volume in hardware.volumes
        for part in (
            *("-blockdev", json.dumps(_drive(volume.file, volume.serial))),
            *("-device", f"nvme,drive={volume.serial},serial={volume.serial}"),
        )
    ]
    spare = [
        part
        for number in range(SPARE_PORTS)
        for part in ("-device", f"pcie-root-port,id=port{number},chassis={number + 1}")
    ]
    return [
        *WITH_PARENT,
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max"),
        *("-smp", str(hardware.cores), "-m", str(_MEMORY_MIB), "-nodefaults", "-nographic"),
        *("-kernel", str(image.kernel), "-initrd", str(image.ram_disk)),
        *("-append", f"{KERNEL_LINE} {variables}"),
        *("-smbios", f"type=1,manufacturer=Amazon EC2,serial={identity},uuid={identity}"),
        *("-serial", f"file:{folder / 'console'}"),
        *("-serial", f"unix:{folder / 'shell'},server=on,wait=off"),
        *("-qmp", f"unix:{folder / 'control'},server=on,wait=off"),
        *("-drive", f"file={disk},if=none,id=root,format=qcow2,cache=unsafe"),
        *("-device", "nvme,drive=root,serial=vol00000000000000000"),
        *("-netdev", f"user,id=net,ipv6=off,{card}{forwarded}"),
        *("-device", f"virtio-net-pci,netdev=net,mac={hardware.mac},romfile="),
        *("-device", "virtio-rng-pci"),
        *volumes,
        *spare,
    ]


def _drive(file: Path, name: str) -> dict[str, Any]:
    return {
        "driver": "raw",
        "node-name": name,
        "file": {"driver": "file", "filename": str(file), "locking": "off"},
    }


def host_address(address: str, peers: Sequence[str]) -> str:
    """Return this machine's address as the guest sees it."""
    return _network(address, peers)[1]


def _network(address: str, peers: Sequence[str]) -> tuple[str, str, str]:
    """Return QEMU's small network around an address, with this machine's address in it and that
    of a name server: other guests are outside of it, and so routed.
    """
    for bits in range(29, 23, -1):
        block = ipaddress.ip_network(f"{address}/{bits}", strict=False)
        inside = [str(host) for host in block.hosts()]
        if address in inside and not set(peers) & set(inside):
            inside.remove(address)
            return str(block), inside[0], inside[1]
    raise MachineFailed(f"{address} is too near to {', '.join(peers)}")
