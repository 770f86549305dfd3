"""Machines in QEMU: one that serves a disk to others over the network, and those that have it.

Each has a kernel of its own. The disk is memory of the serving machine, exported twice: by iSCSI
(`/dev/sda` at the others) and, if its kernel can, by NVMe over TCP (`/dev/nvme0n1`). Who it is is
said by initiator name and host id, as an instance is to EBS. The others see this machine's files
read-only by 9p and run `host_program` with the project's Python; its words go over a serial line.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reservations.kernels import Kernel, initial_ram_disk

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("virtio_pci", "virtio_net", "9p", "9pnet_virtio", "sd_mod"),
    *("iscsi_target_mod", "iscsi_tcp"),
)
STABLE_MODULES = ("crc32c_generic",)  # later kernels have it built in
NVME_MODULES = ("brd", "nvme_tcp", "nvmet_tcp")
KERNEL_WORDS = "quiet panic=-1 no_timer_check tsc=unstable clocksource=hpet"
"""Emulated timers are late under load, which the kernel must not take for a broken one, nor measure
the processor's own clock by.
"""
BOOT_S = 300.0
ANSWER_S = 120.0

INIT = """#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules.order); do busybox insmod /modules/$module; done
busybox mount -t configfs config /sys/kernel/config
busybox ifconfig lo 127.0.0.1 up

serve() {
    busybox mkdir -p /var/target/pr
    core=/sys/kernel/config/target/core/rd_mcp_0/wal
    tpg=/sys/kernel/config/target/iscsi/iqn.2020-01.test:wal/tpgt_1
    busybox mkdir -p $core /sys/kernel/config/target/iscsi
    echo rd_pages=8192 > $core/control
    echo 1 > $core/enable
    echo lakehead > $core/wwn/vpd_unit_serial
    busybox mkdir -p $tpg/lun/lun_0 $tpg/np/0.0.0.0:3260
    busybox ln -s $core $tpg/lun/lun_0/port
    echo 0 > $tpg/attrib/authentication
    nvmet=/sys/kernel/config/nvmet
    if [ "$nvme" = yes ]; then
        busybox mkdir -p $nvmet/subsystems/nqn.2020-01.test:wal/namespaces/1 $nvmet/ports/1
        echo 1 > $nvmet/subsystems/nqn.2020-01.test:wal/attr_allow_any_host
        space=$nvmet/subsystems/nqn.2020-01.test:wal/namespaces/1
        echo 1 > $space/resv_enable
        echo /dev/ram0 > $space/device_path
        echo 1 > $space/enable
        echo tcp > $nvmet/ports/1/addr_trtype
        echo ipv4 > $nvmet/ports/1/addr_adrfam
        echo 0.0.0.0 > $nvmet/ports/1/addr_traddr
        echo 4420 > $nvmet/ports/1/addr_trsvcid
        busybox ln -s $nvmet/subsystems/nqn.2020-01.test:wal $nvmet/ports/1/subsystems/wal
    fi
    line=0
    for host in $(echo $hosts | busybox tr , ' '); do
        busybox ifconfig eth$line 10.9.$line.1 netmask 255.255.255.0 up
        acl=$tpg/acls/iqn.2020-01.test:$host
        busybox mkdir -p $acl/lun_0
        busybox ln -s $tpg/lun/lun_0 $acl/lun_0/port
        line=$((line + 1))
    done
    echo 1 > $tpg/enable
    echo @READY@
    while true; do busybox sleep 1000; done
}

attach() {
    busybox ifconfig eth0 10.9.$line.2 netmask 255.255.255.0 up
    busybox mkdir -p /host
    busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
    for folder in dev proc sys; do busybox mount -o bind /$folder /host/$folder; done
    busybox mount -t tmpfs tmpfs /host/run
    busybox ifconfig eth1 10.0.2.15 netmask 255.255.255.0 up
    busybox route add default gw 10.0.2.2
    busybox chroot /host iscsistart -i iqn.2020-01.test:$name -t iqn.2020-01.test:wal \\
        -g 1 -a 10.9.$line.1 -p 3260
    if [ "$nvme" = yes ]; then
        address=transport=tcp,traddr=10.9.$line.1,trsvcid=4420,nr_io_queues=1
        echo $address,nqn=nqn.2020-01.test:wal,hostnqn=nqn.2020-01.test:$name,hostid=$uuid \\
            > /dev/nvme-fabrics
    fi
    until [ -b /dev/sda ] && { [ "$nvme" != yes ] || [ -b /dev/nvme0n1 ]; }; do
        busybox usleep 50000
    done
    busybox stty -F /dev/ttyS1 raw -echo
    busybox chroot /host /bin/sh -c \\
        'cd @ROOT@ && HOME=/run TMPDIR=/run PYTHONDONTWRITEBYTECODE=1 \\
        @PYTHON@ -m tests.reservations.host_program < /dev/ttyS1 > /dev/ttyS1'
    busybox poweroff -f
}

$role
"""
READY = "LAKEHEAD-DISK-SERVED"


class GuestFailed(Exception):
    """A guest ended, was silent for too long, or its program said that a call had failed."""


@dataclass(frozen=True, slots=True)
class Image:
    """What guests start: a kernel and its first RAM disk, with or without NVMe."""

    kernel: Kernel
    ram_disk: Path
    has_nvme: bool

    @classmethod
    def build(cls, kernel: Kernel, python: str, *, has_nvme: bool) -> Image:
        """Build it for the project's files and this Python. Raises Unavailable."""
        init = INIT.replace("@ROOT@", str(ROOT)).replace("@PYTHON@", python)
        modules = (*MODULES, *(NVME_MODULES if has_nvme else STABLE_MODULES))
        return cls(
            kernel, initial_ram_disk(kernel, modules, init.replace("@READY@", READY)), has_nvme
        )


class Machine:
    """A QEMU process, its kernel's messages in a file, ended by `kill`."""

    def __init__(
        self, image: Image, folder: Path, title: str, devices: Sequence[str], **words: str
    ) -> None:
        self.console = folder / f"{title}.console"
        given = " ".join(f"{key}={value}" for key, value in words.items())
        nvme = "yes" if image.has_nvme else "no"
        with self.console.open("ab") as console:
            self._qemu = subprocess.Popen(
                [
                    *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35"),
                    *("-cpu", "max", "-smp", "1", "-nodefaults", "-nographic", "-no-reboot"),
                    *("-kernel", str(image.kernel.image), "-initrd", str(image.ram_disk)),
                    *("-append", f"console=ttyS0 {KERNEL_WORDS} nvme={nvme} {given}"),
                    *("-serial", "stdio", *devices),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def said(self) -> str:
        """Return what its kernel and init have said."""
        return self.console.read_text(errors="replace")

    def is_running(self) -> bool:
        """Return true if QEMU has not ended."""
        return self._qemu.poll() is None

    def freeze(self) -> None:
        """Stop the whole machine, as a hypervisor does."""
        os.kill(self._qemu.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._qemu.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the whole machine at once, as a power cut does."""
        self._qemu.kill()
        self._qemu.wait()


class DiskServer:
    """The machine that serves the disk to `hosts`, each over a wire of its own."""

    def __init__(self, image: Image, folder: Path, hosts: Sequence[str]) -> None:
        wires: list[str] = []
        for line, host in enumerate(hosts):
            wires += _wire(folder, line, "disk", host)
        self.machine = Machine(
            image, folder, "disk", ["-m", "384", *wires],
            role="serve", hosts=",".join(hosts),
        )  # fmt: skip
        deadline = time.monotonic() + BOOT_S
        while READY not in self.machine.said():
            if not self.machine.is_running() or time.monotonic() > deadline:
                self.machine.kill()
                raise GuestFailed(self.machine.said()[-2000:])
            time.sleep(0.1)


class Host:
    """A machine that has the disk, and the program in it."""

    def __init__(self, image: Image, folder: Path, name: str, line: int, port: int) -> None:
        """Boot it. `port` of this machine leads to the same port of it."""
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        words = folder / f"{name}.words"
        words.unlink(missing_ok=True)
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        devices = [
            *("-m", "1024", *_wire(folder, line, name, "disk")),
            *("-serial", f"unix:{words},server=on,wait=off"),
            *("-netdev", f"user,id=outside,hostfwd=tcp:127.0.0.1:{port}-:{port}"),
            *("-device", "virtio-net-pci,netdev=outside,romfile="),
            "-virtfs",
            "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        ]
        uuid = f"00000000-0000-4000-8000-{name.encode().hex():0>12}"
        self.machine = Machine(
            image, folder, name, devices, role="attach", name=name, line=str(line), uuid=uuid
        )
        try:
            while not words.exists() and self.machine.is_running():
                time.sleep(0.02)
            self._line.connect(str(words))
            threading.Thread(target=self._listen, daemon=True).start()
            self._answer("boot", BOOT_S)
        except BaseException:
            self.kill()
            raise

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the program do something; return its answer, with what it took in seconds until the
        log was open and in all, by this machine's clock. Raises GuestFailed.
        """
        began = time.monotonic()
        self._line.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        answer = self._answer(do, ANSWER_S)
        if "error" in answer:
            raise GuestFailed(f"{self.name}: {do}: {answer['error']}")
        opened = [one["at"] for one in list(self.events) if one["event"] == "opened"]
        if opened and opened[-1] >= began:
            answer["open_s"] = opened[-1] - began
        return answer | {"total_s": time.monotonic() - began}

    def wait(self, event: str, *, least: int = 0, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait for an event of that name, whose number is at least so much; return it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for one in list(self.events):
                if one["event"] == event and one.get("number", 0) >= least:
                    return one
            time.sleep(0.01)
        raise GuestFailed(f"{self.name}: no {event} in {timeout_s:.0f} s: {self.machine.said()}")

    def numbers(self, event: str) -> list[int]:
        """Return the numbers of the events of that name, in order."""
        return [one["number"] for one in list(self.events) if one["event"] == event]

    def kill(self) -> None:
        """End the whole machine, as a power cut does."""
        self.machine.kill()
        self._line.close()

    def _answer(self, what: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.machine.is_running():
            try:
                return self._answers.get(timeout=0.5)
            except queue.Empty:
                continue
        raise GuestFailed(f"{self.name}: no answer to {what}: {self.machine.said()[-3000:]}")

    def _listen(self) -> None:
        with self._line.makefile("rb") as lines:
            try:
                for line in lines:
                    said = json.loads(line)
                    if "event" in said:
                        self.events.append(said | {"at": time.monotonic()})
                    else:
                        self._answers.put(said)
            except (OSError, ValueError):
                return  # it was killed in the middle of a word


def _wire(folder: Path, line: int, here: str, there: str) -> list[str]:
    """Return a network card whose only neighbour is the machine at the other end."""
    ends = {one: folder / f"{one}-{line}" for one in (here, there)}
    mac = f"52:54:00:09:{line:02x}:{1 if here == 'disk' else 2:02x}"
    ways = f"local.type=unix,local.path={ends[here]},remote.type=unix,remote.path={ends[there]}"
    return [
        *("-netdev", f"dgram,id=wire{line},{ways}"),
        *("-device", f"virtio-net-pci,netdev=wire{line},mac={mac},romfile="),
    ]
