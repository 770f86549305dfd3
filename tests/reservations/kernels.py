"""Kernels for guests, and what a guest starts with: fetched by apt once, kept in the cache folder.

The stable kernel of Debian serves SCSI reservations (LIO). An NVMe target with reservations came
with Linux 6.13, so for NVMe a kernel of a later release's backports is used, by a list of sources
of its own: nothing of this machine's package state is touched, and nothing is installed.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache" / "lakehead" / "reservations"
PACKAGES = ("qemu-system-x86", "busybox-static", "cpio", "kmod", "open-iscsi", "xz-utils")
TOOLS = ("qemu-system-x86_64", "busybox", "cpio", "depmod", "dpkg", "iscsistart", "xz")
BACKPORTS = "trixie-backports"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PARTS = (
    *("arch", "block", "crypto", "lib", "net", "fs/9p", "fs/fscache", "fs/netfs"),
    "fs/configfs",
    *("drivers/nvme", "drivers/target", "drivers/scsi", "drivers/block", "drivers/virtio"),
    *("drivers/net/virtio_net", "drivers/net/net_failover"),
)
"""What of the modules is unpacked: all of them would take a minute."""


class Unavailable(Exception):
    """The rig cannot be had here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's image and its modules."""

    image: Path
    modules: Path

    @property
    def version(self) -> str:
        """What `uname -r` says."""
        return self.modules.name


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
    """Install QEMU and what builds guests, if they are missing. Raises Unavailable."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing)} missing: apt-get install {' '.join(PACKAGES)}")
    run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES)


def stable_kernel() -> Kernel:
    """Return the kernel of this machine's Debian. Raises Unavailable."""
    folder = CACHE / "kernel"
    if not list(folder.glob("boot/vmlinuz-*")):
        _unpack(_fetched([_depended("linux-image-amd64", "linux-image-")]), folder)
    image = next(folder.glob("boot/vmlinuz-*"))
    version = image.name.removeprefix("vmlinuz-")
    return _indexed(Kernel(image, folder / "lib" / "modules" / version), folder)


def newest_kernel() -> Kernel:
    """Return the kernel of the backports. Raises Unavailable."""
    folder = CACHE / "newest"
    if not list(folder.glob("usr/lib/modules/*/vmlinuz")):
        options = _backports()
        run("apt-get", *options, "update")
        image = _depended("linux-image-amd64", "linux-image-", options)
        names = [
            _depended(image, "linux-base-", options),  # says what is built in
            _depended(image, "linux-binary-", options),
            _depended("linux-modules-amd64", "linux-modules-", options),
        ]
        _unpack(_fetched(names, options), folder)
    binary = next(folder.glob("usr/lib/modules/*/vmlinuz"))
    return _indexed(Kernel(binary, binary.parent), folder)


def initial_ram_disk(kernel: Kernel, modules: tuple[str, ...], init: str) -> Path:
    """Build what a guest starts with: busybox, the modules in their order, and a script."""
    base = CACHE / f"initrd-{kernel.version}"
    shutil.rmtree(base, ignore_errors=True)
    for folder in ("bin", "dev", "proc", "sys", "modules", "host"):
        (base / folder).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, base / "bin" / "busybox")
    (base / "bin" / "sh").symlink_to("busybox")
    order: dict[str, None] = {}
    for module in modules:
        shown = run(
            "modprobe", "--dirname", str(kernel.modules.parents[2]), "--set-version",
            kernel.version, "--show-depends", module,
        )  # fmt: skip
        for line in shown.splitlines():
            if line.startswith("insmod"):
                file = Path(line.split()[1])
                order[file.name.removesuffix(".xz")] = None
                _copy_module(file, base / "modules")
    (base / "modules.order").write_text("\n".join(order) + "\n")
    (base / "init").write_text(init)
    (base / "init").chmod(0o755)
    archive = CACHE / f"{base.name}.cpio"
    names = "\n".join(str(path.relative_to(base)) for path in sorted(base.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"],
            cwd=base, input=names.encode(), stdout=out, timeout=60, check=True,
        )  # fmt: skip
    return archive


def _copy_module(file: Path, folder: Path) -> None:
    if file.suffix == ".xz":
        (folder / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
    else:
        shutil.copy(file, folder / file.name)


def _backports() -> list[str]:
    """Return apt's options for a list of sources and a state of its own."""
    place = CACHE / "apt"
    for folder in ("etc", "state/lists/partial", "cache/archives/partial"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "state" / "status").touch()
    mirrors = run("apt-get", "indextargets", "--format", "$(REPO_URI)").splitlines()
    mirror = next((one for one in mirrors if one.rstrip("/").endswith("/debian")), None)
    if mirror is None or not KEYS.exists():
        raise Unavailable("no mirror of Debian, or not its keys, in this machine's package lists")
    (place / "etc" / "sources.list").write_text(
        f"deb [signed-by={KEYS}] {mirror} {BACKPORTS} main\n"
    )
    return [
        *("-o", f"Dir::Etc::sourcelist={place}/etc/sources.list"),
        *("-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State={place}/state"),
        *("-o", f"Dir::Cache={place}/cache"),
    ]


def _depended(package: str, prefix: str, options: Sequence[str] = ()) -> str:
    """Return the exact name of what `package` depends on: a pattern would fetch every flavour."""
    depends = run("apt-cache", *options, "depends", package)
    for line in depends.splitlines():
        relation, _, name = line.strip().partition(" ")
        if relation.endswith("Depends:") and name.startswith(prefix):
            return name
    raise Unavailable(f"apt knows no {prefix}* that {package} depends on")


def _fetched(names: Sequence[str], options: Sequence[str] = ()) -> list[Path]:
    CACHE.mkdir(parents=True, exist_ok=True)
    run("apt-get", *options, "download", *names, folder=CACHE)
    return [next(CACHE.glob(f"{name}_*.deb")) for name in names]


def _unpack(packages: list[Path], folder: Path) -> None:
    draft = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    for package in packages:
        with subprocess.Popen(
            ["dpkg", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
        ) as unpacker:
            assert unpacker.stdout is not None
            with tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive:
                for member in archive:
                    if _is_wanted(member.name):
                        archive.extract(member, draft, filter="data")
        package.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def _is_wanted(name: str) -> bool:
    _, found, part = name.partition("/kernel/")
    return not found or part.startswith(_PARTS)


def _indexed(kernel: Kernel, folder: Path) -> Kernel:
    if not (kernel.modules / "modules.dep").exists():
        lib = folder / "lib"
        if not lib.exists():
            lib.symlink_to("usr/lib")
        run("depmod", "-b", str(folder), kernel.version)
    return kernel
