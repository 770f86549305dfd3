"""Fencing on real reservations, in guests of QEMU: `make reservations`.

The kernels of most build machines have none. Two parts, each with kernels of its own:

- One guest, Debian's stable kernel, its disk reached through two iSCSI targets of its own over the
  guest's loopback: `/dev/sda` and `/dev/sdb` are one volume as two hosts see it. It sees this
  machine's files read-only by 9p and runs `test_device_fencing.py` with the project's Python.
- Machines with a kernel each on one disk that another one serves, by NVMe and by iSCSI:
  `test_two_hosts.py` and `test_nodes_on_two_hosts.py`, run here, with the newest kernel of Debian's
  backports (`guests.py`).

Kernels and QEMU come by apt; what is built is kept in `~/.cache/lakehead/reservations`. Ends with
status 0 and a plain reason where that cannot be had. LIO's loopback port would be simpler than
iSCSI, but PREEMPT AND ABORT hangs there (Linux 6.1).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.reservations.kernels import (
    Kernel,
    Unavailable,
    initial_ram_disk,
    install_tools,
    stable_kernel,
)

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("virtio_pci", "9p", "9pnet_virtio", "sd_mod"),
    *("crc32c_generic", "iscsi_target_mod", "iscsi_tcp"),
)
PASSED = "LAKEHEAD-RESERVATIONS-PASSED"
TIMEOUT_S = 900

INIT = """#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules.order); do busybox insmod /modules/$module; done
busybox mount -t configfs config /sys/kernel/config
busybox mkdir -p /var/target/pr
busybox mkdir -p /host
busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
for folder in dev proc sys; do busybox mount -o bind /$folder /host/$folder; done
busybox mount -t tmpfs tmpfs /host/run
busybox ifconfig lo 127.0.0.1 up
target=/sys/kernel/config/target
busybox mkdir -p $target/core/rd_mcp_0/wal $target/iscsi
echo rd_pages=8192 > $target/core/rd_mcp_0/wal/control
echo 1 > $target/core/rd_mcp_0/wal/enable
echo lakehead > $target/core/rd_mcp_0/wal/wwn/vpd_unit_serial
for host in a b; do
    tpg=$target/iscsi/iqn.2020-01.test:wal-$host/tpgt_1
    busybox mkdir -p $tpg/lun/lun_0 $tpg/np/127.0.0.1:3260
    busybox ln -s $target/core/rd_mcp_0/wal $tpg/lun/lun_0/port
    echo 0 > $tpg/attrib/authentication
    busybox mkdir -p $tpg/acls/iqn.2020-01.test:$host/lun_0
    busybox ln -s $tpg/lun/lun_0 $tpg/acls/iqn.2020-01.test:$host/lun_0/port
    echo 1 > $tpg/enable
    busybox chroot /host iscsistart -i iqn.2020-01.test:$host -t iqn.2020-01.test:wal-$host \\
        -g 1 -a 127.0.0.1 -p 3260
done
busybox sleep 1
busybox chroot /host /bin/sh -c '@COMMAND@' && echo @PASSED@
busybox poweroff -f
"""


def boot(kernel: Kernel, ram_disk: Path) -> bool:
    """Run the guest to its end and show what it says; True if its tests passed."""
    command = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35"),
        *("-cpu", "max", "-smp", "2", "-m", "1024", "-nodefaults", "-nographic", "-no-reboot"),
        *("-serial", "mon:stdio", "-kernel", str(kernel.image), "-initrd", str(ram_disk)),
        *("-append", "console=ttyS0 quiet panic=-1"),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
    ]
    guest = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = guest.stdout.decode(errors="replace")
    print(said)
    return PASSED in said


def one_guest() -> int:
    """Build, boot, report. Status 1 only if the tests ran and failed, or the guest hung."""
    command = (
        f"cd {ROOT} && HOME=/run TMPDIR=/run PYTHONDONTWRITEBYTECODE=1 "
        "LAKEHEAD_PR_DISKS=/dev/sda,/dev/sdb "
        f"{sys.executable} -m pytest -q -p no:cacheprovider -o addopts=--import-mode=importlib "
        "tests/reservations/test_device_fencing.py"
    )
    init = INIT.replace("@COMMAND@", command).replace("@PASSED@", PASSED)
    kernel = stable_kernel()
    ram_disk = initial_ram_disk(kernel, MODULES, init)
    try:
        return 0 if boot(kernel, ram_disk) else 1
    except subprocess.TimeoutExpired as hung:
        print((hung.stdout or b"").decode(errors="replace"))
        print(f"reservations: the guest did not end in {TIMEOUT_S} s")
        return 1


def several_guests() -> int:
    """Run the tests that boot machines. Returns their status."""
    tests = ("test_two_hosts.py", "test_nodes_on_two_hosts.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-s"),
            *(f"tests/reservations/{name}" for name in tests),
        ],
        cwd=ROOT,
        env=os.environ | {"LAKEHEAD_GUESTS": "1"},
        check=False,
    )
    return done.returncode


def main() -> int:
    """Run both parts and say how long each took."""
    status = 0
    try:
        install_tools()
        for name, part in (("one guest", one_guest), ("several guests", several_guests)):
            began = time.monotonic()
            failed = part()
            took_s = time.monotonic() - began
            print(f"reservations: {name}: {'failed' if failed else 'passed'} in {took_s:.0f} s")
            status = status or failed
    except Unavailable as reason:
        print(f"reservations: skipped, since the guest cannot be built here: {reason}")
    return status


if __name__ == "__main__":
    sys.exit(main())
