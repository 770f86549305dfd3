"""Machines with a kernel each on one disk: who may write, who is fenced, what is read then.

`make reservations` runs these (`rig.py`). `a` and `c` are two machines that may have the same host
id, as an instance and the one in its place have; `b` is another host. Figures are of emulated
machines, which share the cores of one: seconds here are a fraction of that elsewhere.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from tests.reservations.conftest import NAMES, Rig
from tests.reservations.guests import Host

pytestmark = pytest.mark.timeout(1800)
ENOUGH = 200
"""Records that are released before something happens to who writes them."""


@pytest.fixture(params=["nvme", "iscsi"])
def disk(request: pytest.FixtureRequest, rig: Rig) -> Iterator[str]:
    """The disk's name on every machine, free and empty."""
    if request.param == "nvme" and not rig.image.has_nvme:
        pytest.skip("this kernel's NVMe target has no reservations")
    path = {"nvme": "/dev/nvme0n1", "iscsi": "/dev/sda"}[request.param]
    rig.hosts["b"].call("wipe", disk=path)
    yield path
    for host in rig.hosts.values():
        if host.machine.is_running():
            host.call("close")
            host.events.clear()


def write_on(host: Host, tag: str, *, epoch: int) -> None:
    """Have the log that is open there written without end, and wait until some is released."""
    host.call("write", epoch=epoch, tag=tag)
    host.wait("released", least=ENOUGH)


def check_fenced(host: Host, disk: str) -> None:
    """The log has failed for the right reason, and the machine cannot write one sector."""
    failed = host.wait("failed")
    assert (failed["kind"], "another host" in failed["message"]) == ("Fenced", True)
    assert host.call("sector", disk=disk, at=8 << 20)["errno"] == errno.EBADE


def check_read(host: Host, read: dict[str, Any], tag: str) -> None:
    """All that the writer was told is durable was read, without a gap."""
    first, last, count = read["records"][tag]
    assert (first, count) == (0, last + 1)
    assert max(host.numbers("released")) <= last


def test_the_devices_behave_as_the_simulated_one(rig: Rig, disk: str) -> None:
    """The table that `MemoryReservation` follows. `a` and `c` register the same key."""

    def asked(name: str, call: str, *keys: int) -> Any:
        return rig.hosts[name].call("reserve", disk=disk, call=call, keys=list(keys))["result"]

    def writers() -> str:
        codes = {
            name: rig.hosts[name].call("sector", disk=disk, at=8 << 20)["errno"] for name in NAMES
        }
        assert set(codes.values()) <= {0, errno.EBADE}
        return "".join(name for name, code in codes.items() if not code)

    assert asked("a", "reserve", 1) is not True, "not registered"
    assert asked("a", "register", 7) is None
    assert asked("a", "register", 1) is None, "whatever key it had"
    assert writers() == "abc"
    assert asked("a", "reserve", 1) is True
    assert asked("a", "reserve", 1) is True, "the holder may ask again"
    assert asked("a", "register", 1) is None
    assert (writers(), asked("b", "register", 2)) == ("a", None)
    assert asked("b", "reserve", 2) is False
    assert asked("b", "preempt", 2, 77) is False, "no such victim"
    assert asked("b", "preempt", 2, 1) is True
    assert asked("a", "register", 1) is None
    assert (asked("a", "reserve", 1), writers()) == (False, "b"), "registered, and still fenced"
    assert asked("a", "preempt", 1, 2) is True
    assert asked("c", "register", 1) is None
    assert (asked("c", "reserve", 1), writers()) == (False, "a"), "its key, not its machine"
    assert asked("c", "preempt", 1, 1) is True, "the holder has the key: the caller is left"
    assert (asked("a", "reserve", 1) is True, writers()) == (False, "c")
    assert (asked("c", "preempt", 1, 1), asked("c", "reserve", 1)) == (True, True)
    assert asked("b", "register", 2) is None
    assert (asked("b", "preempt", 2, 1), writers()) == (True, "b")
    assert (asked("c", "register", 1), asked("c", "preempt", 1, 1)) == (None, True)
    assert (asked("c", "reserve", 1) is True, writers()) == (False, "b"), "it removed itself"


def test_a_writer_is_fenced_and_has_its_volume_back(rig: Rig, disk: str) -> None:
    a, b = rig.hosts["a"], rig.hosts["b"]
    a.call("open", disk=disk, host="a")
    write_on(a, "one", epoch=1)
    taken = b.call("take", disk=disk, host="b", other_hosts=["a"])
    check_fenced(a, disk)
    check_read(a, taken, "one")
    print(f"\n{disk}: fenced in {taken['open_s']:.3f} s, read in {taken['total_s']:.3f} s")
    a.call("close")
    again = a.call("open", disk=disk, host="a", other_hosts=["b"])
    assert again["digest"] == taken["digest"], "nothing was written after the fence"
    assert b.call("sector", disk=disk, at=8 << 20)["errno"] == errno.EBADE
    b.call("close")
    a.events.clear()
    write_on(a, "two", epoch=2)
    last = b.call("take", disk=disk, host="b", other_hosts=["a"])
    check_fenced(a, disk)
    check_read(a, last, "two")
    assert last["records"]["one"] == taken["records"]["one"]


def test_a_machine_that_was_frozen_is_fenced_when_it_goes_on(rig: Rig, disk: str) -> None:
    a, b = rig.hosts["a"], rig.hosts["b"]
    a.call("open", disk=disk, host="a")
    write_on(a, "one", epoch=1)
    a.machine.freeze()
    try:
        taken = b.call("take", disk=disk, host="b", other_hosts=["a"])
        write_on(b, "other", epoch=2)
    finally:
        a.machine.thaw()
    check_fenced(a, disk)
    check_read(a, taken, "one")
    print(f"\n{disk}: a frozen one fenced in {taken['open_s']:.3f} s")
    b.call("close")
    last = b.call("open", disk=disk, host="b")
    check_read(b, last, "other")
    assert last["records"]["one"] == taken["records"]["one"]


def test_a_machine_in_place_of_another_has_its_volume(rig: Rig, disk: str) -> None:
    """`c` has the host id, thus the key, of `a`, which is alive and writes; then of one that was
    preempted by `b` meanwhile.
    """
    a, b, c = (rig.hosts[name] for name in NAMES)
    a.call("open", disk=disk, host="a")
    write_on(a, "one", epoch=1)
    taken = c.call("open", disk=disk, host="a", other_hosts=["b"])
    check_fenced(a, disk)
    check_read(a, taken, "one")
    write_on(c, "two", epoch=2)
    assert a.call("reserve", disk=disk, call="register", keys=[1])["result"] is None
    assert a.call("sector", disk=disk, at=8 << 20)["errno"] == errno.EBADE
    by_b = b.call("take", disk=disk, host="b", other_hosts=["a"])
    check_fenced(c, disk)
    check_read(c, by_b, "two")
    c.call("close")
    a.call("close")
    back = a.call("open", disk=disk, host="a", other_hosts=["b"])
    assert back["digest"] == by_b["digest"]
    for stale in (b, c):
        assert stale.call("sector", disk=disk, at=8 << 20)["errno"] == errno.EBADE


def test_a_machine_is_killed_while_it_writes(rig: Rig, disk: str) -> None:
    """The power is cut; another reads all that was acknowledged to anybody outside."""
    name = "a" if "nvme" in disk else "c"
    victim, b = rig.hosts[name], rig.hosts["b"]
    victim.call("open", disk=disk, host="a")
    write_on(victim, "one", epoch=1)
    victim.kill()
    taken = b.call("take", disk=disk, host="b", other_hosts=["a"])
    check_read(victim, taken, "one")
    print(
        f"\n{disk}: of a killed one, fenced {taken['open_s']:.3f} s, read {taken['total_s']:.3f} s"
    )
    if name == "a":
        back = rig.boot("a").call("open", disk=disk, host="a", other_hosts=["b"])
        assert back["digest"] == taken["digest"]
        assert b.call("sector", disk=disk, at=8 << 20)["errno"] == errno.EBADE
