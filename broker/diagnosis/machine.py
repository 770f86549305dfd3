"""The machine of a node: memory, open files, room for the log, and the addresses to listen at."""

import os
import resource
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lakehead.broker.diagnosis.finding import Finding, failed, ok, warning
from lakehead.broker.network.listeners import Listener
from lakehead.broker.settings import MIB, Settings
from lakehead.storage.plain_text import size_text

_OPEN_FILES_LEAST = 65_536
_BASE_MEMORY = 150 * MIB
"""A node needs this beside its caches (docs/tuning.md)."""
_LITTLE_ROOM = 1024 * MIB
"""The free space of a store's disk below which doctor warns."""
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Bytes of memory that this process may use, of its container if that has a limit; cores; the
    hard limit of open files (-1: none).
    """

    memory: int
    is_container: bool
    cores: int
    open_files: int


def read_machine() -> MachineFacts:
    """Read the facts of this machine, as they are for this process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or `max`
            limit = min(limit, int(path.read_text()))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineFacts(
        memory=limit,
        is_container=limit < memory,
        cores=len(os.sched_getaffinity(0)),
        open_files=-1 if hard == resource.RLIM_INFINITY else hard,
    )


def memory_needed(settings: Settings) -> int:
    """Return the bytes that the nodes of these settings may take, by their budgets."""
    one = (
        settings.cache_size
        + settings.wal_pending_size
        + settings.block_cache_size
        + settings.index_cache_size
        + settings.cold_read_size
        + settings.request_memory_size
        + settings.group_memory_size
        + _BASE_MEMORY
    )
    return one * max(settings.nodes, 1)


def judge_machine(facts: MachineFacts, settings: Settings) -> list[Finding]:
    """Judge memory, cores and open files for nodes of these settings."""
    findings = []
    needed = memory_needed(settings)
    place = "the container" if facts.is_container else "the machine"
    found = f"nodes may take {size_text(needed)}, {place} has {size_text(facts.memory)}"
    if needed > facts.memory:
        advice = "set smaller cache.size, block.cache.size and request.memory.size, or fewer nodes"
        findings.append(failed("memory", found, advice))
    elif needed > facts.memory * 0.8:
        advice = "leave a fifth of the memory to the system, or set a smaller cache.size"
        findings.append(warning("memory", found, advice))
    else:
        findings.append(ok("memory", found))
    nodes, cores = max(settings.nodes, 1), facts.cores
    found = f"{nodes} node{'s' * (nodes > 1)}, {cores} core{'s' * (cores > 1)}"
    if nodes > cores:
        findings.append(warning("cores", found, "a node uses one core: set nodes to the cores"))
    else:
        findings.append(ok("cores", found))
    wanted = max(_OPEN_FILES_LEAST, settings.max_connections)
    if facts.open_files < 0:
        findings.append(ok("open files", "no limit"))
    elif facts.open_files < wanted:
        advice = f"raise the hard limit to {wanted}: LimitNOFILE= of systemd, or ulimit -Hn"
        findings.append(warning("open files", f"at most {facts.open_files}", advice))
    else:
        findings.append(ok("open files", f"at most {facts.open_files}"))
    return findings


def judge_room(path: Path, needed: int, what: str) -> Finding:
    """Judge the free space for `needed` more bytes at a path that may not be there yet."""
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return failed(what, f"{folder}: {error.strerror}", "name a folder that can be read")
    found = f"{size_text(free)} free in {folder}"
    if needed > free:
        advice = f"{size_text(needed)} are needed: free some, or name another place"
        return failed(what, found, advice)
    if not os.access(folder, os.W_OK):
        return failed(what, f"{folder} cannot be written", "change its owner, or name another")
    return ok(what, found)


def judge_disk(store: Path) -> list[Finding]:
    """Return a warning if the disk of an object store in a folder is almost full.

    A node whose store is full repeats its uploads, and its producers wait.
    """
    free = shutil.disk_usage(store).free
    if free >= _LITTLE_ROOM:
        return []
    found = f"{size_text(free)} free in {store}"
    return [warning("object store", found, "free some: producers wait while the store is full")]


def judge_listeners(listeners: Iterable[Listener]) -> list[Finding]:
    """Judge the addresses to listen at, by a look for another process that listens there."""
    return [_listening(listener) for listener in listeners]


def _listening(listener: Listener) -> Finding:
    check = f"listener {listener.name}"
    address = f"{listener.host or '*'}:{listener.port}"
    if not listener.port:
        return ok(check, "takes a free port")
    try:
        found = socket.getaddrinfo(
            listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        reason = error.strerror or str(error)
        return failed(check, f"{address}: {reason}", "name an address of this machine")
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(place)
            tried.listen(1)
        except OSError as error:
            reason = error.strerror or str(error)
            advice = "a node that runs already, or another program: set another port if it is not"
            return warning(check, f"{address}: {reason}", advice)
    return ok(check, f"{address} is free")
