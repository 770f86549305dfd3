"""A container with an init of its own in place of a guest: minutes where a guest takes tens.

systemd-nspawn runs the image's systemd, in a network of its own behind a bridge. What a guest shows
and a container does not: the kernel, disks, links by udev, EC2's own source of user data, which
cloud-init does not look for in containers (it finds them in a folder).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.boot.image import Image, run
from tests.boot.machine import COMMAND_S, WITH_PARENT, Hardware, MachineFailed

BRIDGE, GATEWAY = "instances", "10.255.255.254"
_SEED = "var/lib/cloud/seed/nocloud"
_HIERARCHIES = tuple(Path("/sys/fs/cgroup", name) for name in ("systemd", "unified", ""))
"""Those that systemd uses: the first two in a mixed set-up, else the last."""
_ENTER = 'for procs in $0; do echo $$ >$procs; done; exec "$@"'
_END_S = 30
_REBOOTS = 133
"""systemd-nspawn's status when it is to be started again."""
_LEFT_OUT = ("rig-shell", "systemd-networkd", "systemd-networkd-wait-online", "systemd-resolved")


@dataclass(slots=True)
class Container:
    """A container that runs, or has run."""

    command_line: Sequence[str]
    console: Path
    process: subprocess.Popen[bytes]

    def command(self, line: str, *, timeout_s: float = COMMAND_S) -> tuple[int, str]:
        """See Machine."""
        inside = ["nsenter", f"--target={self._init()}", "--mount", "--uts", "--ipc", "--pid"]
        inside += ["--net", "--root", "--wd", "--", "bash", "-c", line]
        try:
            done = subprocess.run(
                inside, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MachineFailed(f"{line}: no answer in {timeout_s:.0f} s") from error
        return done.returncode, (done.stdout + done.stderr).strip()

    def check_alive(self) -> None:
        """See Machine. A container that boots anew is started by whoever started it."""
        if self.process.poll() == _REBOOTS:
            self.process = _started(self.command_line, self.console)
        if self.process.poll() is not None:
            said = self.console.read_text(errors="replace")[-2000:]
            raise MachineFailed(f"systemd-nspawn ended with {self.process.returncode}: {said}")

    def kill(self) -> None:
        """See Machine: all of its processes at once, by the end of their first."""
        if self.process.poll() is None:
            with contextlib.suppress(MachineFailed, ProcessLookupError):
                run("kill", "-KILL", self._init())
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _init(self) -> str:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        found = children.read_text().split() if children.exists() else []
        if not found:
            raise MachineFailed("the container has no init")
        return found[0]


def open_bridge() -> None:
    """Make the network that containers share with this test. What is kept in /run (names of
    networks, of containers) is this test's own.
    """
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{GATEWAY}/8", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def mount_image(image: Image, folder: Path) -> Path:
    """Mount the image for reading, in this test's own mount namespace."""
    folder.mkdir()
    run("mount", "-o", "loop,ro", image.disk, folder)
    return folder


@contextlib.contextmanager
def contained(image: Path, hardware: Hardware, folder: Path, user_data: str) -> Iterator[Container]:
    """Start a container on a layer of its own over the mounted image; it is killed at the end."""
    root = _layer(image, folder)
    _configure(root, hardware, user_data)
    space = _network(hardware)
    groups = _groups(hardware.name)
    command = [
        *("sh", "-c", _ENTER, " ".join(f"{group}/cgroup.procs" for group in groups)),
        *WITH_PARENT,
        *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot"),
        *("--console=pipe", f"--directory={root}", f"--machine={hardware.name}"),
        *(f"--network-namespace-path={space}", "--capability=CAP_SYS_ADMIN"),
    ]
    console = folder / "console"
    container = Container(command, console, _started(command, console))
    try:
        yield container
    finally:
        container.kill()
        for group in groups:
            _remove(group)


def _groups(name: str) -> list[Path]:
    """Make control groups for a container: its systemd takes what it is started in for its own."""
    groups = [
        base / f"lakehead-boot-{os.getpid()}-{name}"
        for base in _HIERARCHIES
        if (base / "cgroup.procs").exists()
    ]
    for group in groups:
        group.mkdir(exist_ok=True)  # one that was killed has left its own
    return groups


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):  # the kernel removes them a little later
            Path(folder).rmdir()


def _started(command: Sequence[str], console: Path) -> subprocess.Popen[bytes]:
    with console.open("ab") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def _layer(image: Path, folder: Path) -> Path:
    root = folder / "root"
    for part in ("changes", "work", "root"):
        (folder / part).mkdir(parents=True)
    layers = f"lowerdir={image},upperdir={folder / 'changes'},workdir={folder / 'work'}"
    run("mount", "-t", "overlay", "overlay", "-o", layers, root)
    return root


def _configure(root: Path, hardware: Hardware, user_data: str) -> None:
    (root / _SEED).mkdir(parents=True)
    (root / _SEED / "user-data").write_text(user_data)
    about = {"instance-id": hardware.instance_id, "local-hostname": hardware.name}
    (root / _SEED / "meta-data").write_text(json.dumps(about))
    source = root / "etc/cloud/cloud.cfg.d/99-container.cfg"
    source.write_text("datasource_list: [NoCloud]\nnetwork: {config: disabled}\n")
    variables = " ".join(f"{name}={value}" for name, value in hardware.environment.items())
    manager = root / "etc/systemd/system.conf.d/environment.conf"
    manager.parent.mkdir(parents=True, exist_ok=True)
    manager.write_text(f"[Manager]\nDefaultEnvironment={variables}\n")
    for unit in _LEFT_OUT:
        file = root / "etc/systemd/system" / f"{unit}.service"
        file.unlink(missing_ok=True)
        file.symlink_to("/dev/null")


def _network(hardware: Hardware) -> Path:
    name = hardware.name
    run("ip", "netns", "add", name)
    run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "link", "set", f"to-{name}", "master", BRIDGE, "up")
    inside = ("ip", "-netns", name)
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "address", "add", f"{hardware.address}/8", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")
    run(*inside, "route", "add", "default", "via", GATEWAY)
    return Path("/run/netns") / name
