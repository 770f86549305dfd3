"""Reservation calls: their numbers and layouts, and the table that the software one follows."""

import errno
import fcntl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError
from lakehead.storage.wal import reservation_ioctl
from lakehead.storage.wal.device import IoThreads
from lakehead.storage.wal.reservation import ReservationsUnsupported, reservation_key
from lakehead.storage.wal.reservation_ioctl import IoctlReservation
from lakehead.storage.wal.reservation_memory import MemoryReservation, ReservationTable


def test_the_numbers_are_those_of_linux_pr_h() -> None:
    def number(direction: int, nr: int, size: int) -> int:
        return direction << 30 | size << 16 | ord("p") << 8 | nr

    module = reservation_ioctl
    assert number(1, 200, 24) == module.IOC_PR_REGISTER
    assert number(1, 201, 16) == module.IOC_PR_RESERVE
    assert number(1, 203, 24) == module.IOC_PR_PREEMPT
    assert number(1, 204, 24) == module.IOC_PR_PREEMPT_ABORT
    assert number(1, 205, 16) == module.IOC_PR_CLEAR
    assert number(2, 207, 16) == module.IOC_PR_READ_RESERVATION


def test_keys_are_stable_not_zero_and_differ() -> None:
    assert reservation_key("c", "a") == reservation_key("c", "a")
    keys = {reservation_key(c, h) for c in ("", "c", "d") for h in ("", "a", "b", "c")}
    assert len(keys) == 12
    assert all(0 < key < 2**64 for key in keys)


class Kernel:
    """Answers ioctl as the kernel would, and remembers what it was asked."""

    def __init__(self, *answers: int | OSError) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[int, bytes]] = []

    def __call__(self, fd: int, request: int, argument: object) -> int:
        assert isinstance(argument, bytearray), "bytes would hide a positive status"
        self.calls.append((request, bytes(argument)))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


Patched = Callable[..., tuple[Kernel, IoctlReservation]]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Patched:
    def make(*answers: int | OSError, aborts: bool = False) -> tuple[Kernel, IoctlReservation]:
        kernel = Kernel(*answers)
        monkeypatch.setattr(fcntl, "ioctl", kernel)

        async def run(call: Callable[[], int]) -> int:
            return call()

        return kernel, IoctlReservation(Path("/dev/x"), 0, run, aborts=aborts)

    return make


@pytest.mark.parametrize("status", [0x18, 0x118, 0x83, 0x4083])
async def test_a_positive_status_is_a_conflict_and_not_success(
    patched: Patched, status: int
) -> None:
    _, reservation = patched(status, status)
    assert not await reservation.reserve(5)
    assert not await reservation.preempt(5, 6)


@pytest.mark.parametrize("status", [2, 0x402, 0x4001, 0xE0000])
async def test_any_other_status_is_an_error(patched: Patched, status: int) -> None:
    _, reservation = patched(status, status)
    with pytest.raises(OSError, match=f"{status:#x}"):
        await reservation.register(5)
    with pytest.raises(OSError, match=f"{status:#x}"):
        await reservation.preempt(5, 6)


async def test_a_host_that_has_another_key_has_it_replaced(patched: Patched) -> None:
    """NVMe: a host whose `host.id` or cluster was another one on this device."""
    kernel, reservation = patched(0x18, 0)
    await reservation.register(7)
    replaced = struct.pack("=QQII", 7, 7, 1, 0)
    assert kernel.calls[1] == (reservation_ioctl.IOC_PR_REGISTER, replaced)
    _, reservation = patched(0x18, 0x18)
    with pytest.raises(OSError, match="REGISTER was refused"):
        await reservation.register(7)


async def test_preempt_names_the_own_key_first_and_asks_for_write_exclusive(
    patched: Patched,
) -> None:
    kernel, reservation = patched(0, 0, 0)
    assert await reservation.preempt(0x11, 0x22)
    assert kernel.calls[0] == (
        reservation_ioctl.IOC_PR_PREEMPT,
        struct.pack("=QQII", 0x11, 0x22, 1, 0),
    )
    await reservation.register(0x33)
    assert kernel.calls[1][1] == struct.pack("=QQII", 0, 0x33, 1, 0), "whatever key was there"
    assert await reservation.reserve(0x33)
    assert kernel.calls[2][1] == struct.pack("=QII", 0x33, 1, 0)
    kernel, reservation = patched(0, aborts=True)
    await reservation.preempt(1, 2)
    assert kernel.calls[0][0] == reservation_ioctl.IOC_PR_PREEMPT_ABORT


async def test_without_the_privilege_the_message_says_which(patched: Patched) -> None:
    _, reservation = patched(OSError(errno.EPERM, "no"))
    with pytest.raises(SettingsError, match="CAP_SYS_ADMIN"):
        await reservation.register(1)


async def test_the_holder_is_unknown_where_the_kernel_cannot_read_it(patched: Patched) -> None:
    _, reservation = patched(OSError(errno.ENOTTY, "no"))
    assert await reservation.holder() is None


async def test_what_is_no_disk_has_no_reservations(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    threads = IoThreads(1)
    reservation = IoctlReservation.open(path, threads.run)
    with pytest.raises(ReservationsUnsupported, match="reservations=none"):
        await reservation.register(1)
    await reservation.close()
    await threads.close()


async def test_the_software_one_follows_the_measured_table() -> None:
    table = ReservationTable()
    a, b = MemoryReservation(table, "a"), MemoryReservation(table, "b")
    assert not await a.reserve(1), "not registered"
    await a.register(1)
    assert not await a.reserve(3), "not its key"
    assert await a.reserve(1)
    assert await a.reserve(1)
    await b.register(2)
    assert not await b.reserve(2)
    assert (a.may_write(), b.may_write()) == (True, False)
    assert not await b.preempt(2, 77)
    assert not await b.preempt(3, 1)
    assert await b.preempt(2, 1)
    assert (a.may_write(), b.may_write()) == (False, True)
    assert not await a.clear(1), "unregistered"
    await a.register(1)
    assert not await a.reserve(1)
    assert not a.may_write(), "registered again, and still fenced"
    assert await a.clear(1)
    assert a.may_write()
    assert b.may_write()
