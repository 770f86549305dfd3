"""A guest whose disk has real SCSI reservations, for the tests in this folder: `make reservations`.

The kernels of most build machines have none. Here QEMU runs Debian's stock kernel with Linux' own
SCSI target (LIO) and iSCSI over the guest's loopback: one RAM disk behind two targets, so that
`/dev/sda` and `/dev/sdb` are one volume as two hosts see it. The guest sees this machine's files
read-only by 9p and runs the project's tests with the project's Python. The kernel and QEMU come by
apt; what is built is kept in `~/.cache/lakehead/reservations`. Ends with status 0 and a plain
reason where that cannot be had.

LIO's loopback port would be simpler, but PREEMPT AND ABORT hangs there (Linux 6.1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "lakehead" / "reservations"
PACKAGES = ("qemu-system-x86", "busybox-static", "cpio", "kmod", "open-iscsi")
MODULES = (
    *("virtio_pci", "9p", "9pnet_virtio", "sd_mod"),
    *("crc32c_generic", "iscsi_target_mod", "iscsi_tcp"),
)
PASSED = "LAKEHEAD-RESERVATIONS-PASSED"
TIMEOUT_S = 600

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


class Unavailable(Exception):
    """The rig cannot be had here; the message says what is missing."""


def run(*command: str, folder: Path | None = None) -> str:
    """Run a command and return what it said. Raises Unavailable."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:3])} ...: {done.stderr.strip()[-300:]}")
    return done.stdout


def install_tools() -> None:
    """Install QEMU and what builds the guest, if they are missing."""
    tools = ("qemu-system-x86_64", "busybox", "cpio", "depmod", "dpkg", "iscsistart")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing)} missing: apt-get install {' '.join(PACKAGES)}")
    run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES)


def kernel() -> tuple[Path, Path]:
    """Return Debian's kernel and its modules folder, fetched once."""
    unpacked = CACHE / "kernel"
    if not list(unpacked.glob("boot/vmlinuz-*")):
        CACHE.mkdir(parents=True, exist_ok=True)
        depends = run("apt-cache", "depends", "linux-image-amd64")
        # The exact name: a pattern would fetch every flavour of the kernel.
        name = next(line.split()[-1] for line in depends.splitlines() if "Depends:" in line)
        run("apt-get", "download", name, folder=CACHE)
        package = next(CACHE.glob(f"{name}_*.deb"))
        run("dpkg", "-x", str(package), str(unpacked))
        package.unlink()
    image = next(unpacked.glob("boot/vmlinuz-*"))
    version = image.name.removeprefix("vmlinuz-")
    run("depmod", "-b", str(unpacked), version)
    return image, unpacked / "lib" / "modules" / version


def initial_ram_disk(modules: Path, command: str) -> Path:
    """Build what the guest starts with: busybox, the modules in order, and the script."""
    base = CACHE / "initrd"
    shutil.rmtree(base, ignore_errors=True)
    for folder in ("bin", "dev", "proc", "sys", "modules", "host"):
        (base / folder).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, base / "bin" / "busybox")
    (base / "bin" / "sh").symlink_to("busybox")
    order: dict[str, None] = {}
    for module in MODULES:
        shown = run(
            "modprobe", "--dirname", str(modules.parents[2]), "--set-version", modules.name,
            "--show-depends", module,
        )  # fmt: skip
        for line in shown.splitlines():
            if line.startswith("insmod"):
                file = Path(line.split()[1])
                order[file.name] = None
                shutil.copy(file, base / "modules" / file.name)
    (base / "modules.order").write_text("\n".join(order) + "\n")
    init = base / "init"
    init.write_text(INIT.replace("@COMMAND@", command).replace("@PASSED@", PASSED))
    init.chmod(0o755)
    archive = CACHE / "initrd.cpio"
    names = "\n".join(str(path.relative_to(base)) for path in sorted(base.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"],
            cwd=base, input=names.encode(), stdout=out, timeout=60, check=True,
        )  # fmt: skip
    return archive


def boot(image: Path, ram_disk: Path) -> bool:
    """Run the guest to its end and show what it says; True if its tests passed."""
    command = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35"),
        *("-cpu", "max", "-smp", "2", "-m", "1024", "-nodefaults", "-nographic", "-no-reboot"),
        *("-serial", "mon:stdio", "-kernel", str(image), "-initrd", str(ram_disk)),
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


def main() -> int:
    """Build, boot, report. Status 1 only if the tests ran and failed, or the guest hung."""
    command = (
        f"cd {ROOT} && HOME=/run TMPDIR=/run PYTHONDONTWRITEBYTECODE=1 "
        "LAKEHEAD_PR_DISKS=/dev/sda,/dev/sdb "
        f"{sys.executable} -m pytest -q -p no:cacheprovider -o addopts=--import-mode=importlib "
        "tests/reservations"
    )
    try:
        install_tools()
        image, modules = kernel()
        ram_disk = initial_ram_disk(modules, command)
    except Unavailable as reason:
        print(f"reservations: skipped, since the guest cannot be built here: {reason}")
        return 0
    try:
        return 0 if boot(image, ram_disk) else 1
    except subprocess.TimeoutExpired as hung:
        print((hung.stdout or b"").decode(errors="replace"))
        print(f"reservations: the guest did not end in {TIMEOUT_S} s")
        return 1


if __name__ == "__main__":
    sys.exit(main())
