"""A network of its own for a cluster: each node in a network namespace, joined by a bridge.

This process must be in a namespace of its own already (`enter`): clients run here, under
`CLIENTS`, and the object store at `STORE`. Nothing outlives the processes. Node n has the address
10.97.0.(10 + n). What is cut is cut by nft rules inside a node's namespace, so it may be one way
only, or a share of the packets.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

CLIENTS = "10.97.0.1"
STORE = "10.97.0.2"
_ENTERED = "CHAOS_NAMESPACE"
_TOOLS = ("ip", "nft", "nsenter", "unshare")
_BRIDGE = "lakehead0"
LOST_PERCENT = 30


def obstacle() -> str:
    """Why there can be no namespaces here; empty if there can be."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    trial = subprocess.run(["unshare", "--net", "--", "true"], capture_output=True, check=False)
    if trial.returncode:
        return "network namespaces need root"
    return ""


def enter() -> None:
    """Begin this program anew in a namespace of its own, unless it is in one."""
    if not os.environ.get(_ENTERED):
        os.environ[_ENTERED] = "1"
        os.execvp("unshare", ["unshare", "--net", "--", *sys.orig_argv])


def cut_rules(kind: str, node: int, nodes: int) -> list[str]:
    """The nft rules of one kind of cut around a node, for its own namespace."""
    peers = ", ".join(address(other) for other in range(nodes) if other != node)
    return {
        "isolated": ["in iif != lo drop", "out oif != lo drop"],
        "no peers": [f"in ip saddr {{ {peers} }} drop", f"out ip daddr {{ {peers} }} drop"],
        "deaf to peers": [f"in ip saddr {{ {peers} }} drop"],
        "no clients": [f"in ip saddr {CLIENTS} drop"],
        "no store": [f"in ip saddr {STORE} drop", f"out ip daddr {STORE} drop"],
        "lossy": [f"in iif != lo numgen random mod 100 < {LOST_PERCENT} drop"],
    }[kind]


def ruleset(cuts: Sequence[str]) -> str:
    """What nft reads: only these rules, or none."""
    chains = {"in": "input", "out": "output"}
    lines = ["flush ruleset"]
    if cuts:
        lines.append("table inet chaos {")
        for short, hook in chains.items():
            rules = [rule.partition(" ")[2] for rule in cuts if rule.startswith(f"{short} ")]
            lines.append(f"chain {hook} {{ type filter hook {hook} priority 0;")
            lines += [*rules, "}"]
        lines.append("}")
    return "\n".join(lines) + "\n"


def address(node: int) -> str:
    """The address of a node."""
    return f"10.97.0.{10 + node}"


class Network:
    """The bridge, and a namespace for each node: held open by a process that only waits."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Network":
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        for own in (CLIENTS, STORE):
            _run("ip", "address", "add", f"{own}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        try:
            for node in range(self._nodes):
                self._join(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        _run("ip", "link", "delete", _BRIDGE)

    def under(self, node: int) -> tuple[str, ...]:
        """What a command is run under to be on this node's machine."""
        return ("nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net", "--")

    def cut(self, node: int, kind: str) -> None:
        """Cut a node off in one way, which ends any other."""
        self._set(node, cut_rules(kind, node, self._nodes))

    def heal(self, node: int) -> None:
        """Nothing is cut any more around this node."""
        self._set(node, [])

    def _set(self, node: int, rules: Sequence[str]) -> None:
        _run(*self.under(node), "nft", "-f", "-", text=ruleset(rules))

    def _join(self, node: int) -> None:
        # The shell says that its namespace is there, then waits for ever.
        holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo ready && exec sleep infinity"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise OSError("no network namespace for a node")
        ours, theirs = f"node{node}", f"peer{node}"
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs)
        _run("ip", "link", "set", theirs, "netns", str(holder.pid))
        _run("ip", "link", "set", ours, "master", _BRIDGE, "up")
        inside = self.under(node)
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "address", "add", f"{address(node)}/24", "dev", theirs)
        _run(*inside, "ip", "link", "set", theirs, "up")


def _run(*command: str, text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
