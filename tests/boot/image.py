"""The image that guests start from: Debian 12 with what an image of EC2 brings, made once.

debootstrap fetches the packages by the machine's own apt; it needs root. In place of Amazon's image
it has cloud-init, systemd-networkd, Python 3.11 and AWS's command line (from pip, since Debian's
knows no AWS_ENDPOINT_URL). Besides there is a shell on the second serial port, by which the test
looks at the guest, and a rule that names disks as Amazon's images do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "systemd-resolved", "udev", "dbus", "kmod", "initramfs-tools"),
    *("linux-image-cloud-amd64", "cloud-init", "isc-dhcp-client", "iproute2", "sudo", "procps"),
    # What a dependency names by another name has to be named here: debootstrap does not look.
    *("python3.11-venv", "python3-distutils", "python3-cffi-backend", "ca-certificates"),
)
TOOLS = {
    "debootstrap": "debootstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "ip": "iproute2",
    "unshare": "util-linux",
    "systemd-nspawn": "systemd-container",
}
AWS_TOOL = "awscli>=1.40,<2"
"""AWS's command line, version 1, which is the one that pip has."""
DISK_GIB = 8
_DEBOOTSTRAP_S = 1200
_STEP_S = 600

FILES = {
    "etc/fstab": "LABEL=rootfs / ext4 defaults 0 1\n",
    "etc/systemd/system/rig-shell.service": """\
[Unit]
Description=The test's way in

[Service]
ExecStart=/usr/local/sbin/rig-shell
Restart=always

[Install]
WantedBy=multi-user.target
""",
    "usr/local/sbin/rig-shell": """\
#!/bin/bash
# One command a line; what it says comes back, and then a line with @@ and its status.
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo
while read -r line <&3; do
    said=$(timeout 300 bash -c "$line" 2>&1 </dev/null)
    status=$?
    printf '%s\\n@@%d\\n' "$said" $status >&3
done
""",
    # Amazon's images make these links; QEMU's disks have a model of their own.
    "etc/udev/rules.d/70-ebs.rules": 'SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", '
    'ATTRS{serial}=="vol*", SYMLINK+="disk/by-id/nvme-Amazon_Elastic_Block_Store_$attr{serial}"\n',
    "etc/cloud/cloud.cfg.d/90-ec2.cfg": "datasource_list: [Ec2]\nlocale: C.UTF-8\n"
    "ssh_genkeytypes: []\nsystem_info:\n  network:\n    renderers: [networkd]\n",
    "etc/initramfs-tools/conf.d/rig": "MODULES=list\nCOMPRESS=lz4\n",
    "etc/initramfs-tools/modules": "nvme\next4\ncrc32c_generic\n",
}


class Unavailable(Exception):
    """The image cannot be made here. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What QEMU starts: a raw disk that is never written to, its kernel and its RAM disk."""

    disk: Path
    kernel: Path
    ram_disk: Path


def image() -> Image:
    """Return the image; the first call on a machine makes it, in minutes. Raises Unavailable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakehead"
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"boot-{recipe}"
    made = Image(
        disk=folder / "disk.raw", kernel=folder / "vmlinuz", ram_disk=folder / "initrd.img"
    )
    check_tools()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.disk.exists():
            root = folder / "root"
            try:
                _fill(root)
                _pack(root, made)
            finally:
                shutil.rmtree(root, ignore_errors=True)
    return made


def check_tools() -> None:
    """Raises Unavailable."""
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        raise Unavailable(f"install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unavailable("it needs root: for debootstrap, and for a network of its own")


def run(*command: str | Path, timeout_s: float = _STEP_S) -> str:
    """Run a command and return what it said. Raises Unavailable."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise Unavailable(f"{' '.join(map(str, command[:3]))} ...: {said}")
    return done.stdout


def _fill(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    run(
        "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, root,
        timeout_s=_DEBOOTSTRAP_S,
    )  # fmt: skip
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "usr/local/sbin/rig-shell").chmod(0o755)
    wheels = root / "tmp" / "wheels"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, AWS_TOOL)
    inside = ("chroot", str(root))
    run(*inside, "python3.11", "-m", "venv", "/usr/local/aws")
    run(
        *inside, "/usr/local/aws/bin/pip", "install", "--quiet", "--no-index",
        "--find-links", "/tmp/wheels", AWS_TOOL,
    )  # fmt: skip
    shutil.rmtree(wheels)
    (root / "usr/local/bin/aws").symlink_to("/usr/local/aws/bin/aws")
    run(*inside, "systemctl", "enable", "rig-shell", "systemd-networkd", "systemd-resolved")
    run(*inside, "update-initramfs", "-u")
    (root / "etc/machine-id").write_text("")  # each instance gets its own
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)


def _pack(root: Path, made: Image) -> None:
    for source, copy in (("vmlinuz-*", made.kernel), ("initrd.img-*", made.ram_disk)):
        shutil.copy(next((root / "boot").glob(source)), copy)
    unfinished = made.disk.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    run("mke2fs", "-q", "-t", "ext4", "-L", "rootfs", "-d", root, unfinished, f"{DISK_GIB}G")
    unfinished.rename(made.disk)
