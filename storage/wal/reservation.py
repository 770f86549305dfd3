"""Fencing between hosts: a persistent reservation on the device that carries the WAL.

The owner of a volume registers its key and holds a *write exclusive* reservation (type 1): the
device refuses the writes of every other host, registered or not, and takes the reads of all. A
taker registers its own key and preempts the owner's; when that call has returned, no write of the
old owner that begins later succeeds, so only then the taker reads. All processes of a host share
its key and its reservation: between them a lock fences (`volume`).

Implementations: `reservation_ioctl` (real), `reservation_memory` (software, for tests),
`reservation_faulty` (a wrapper whose calls fail).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from lakehead.storage.errors import Fenced, SettingsError

_ATTEMPTS = 3


class Reservation(Protocol):
    """The persistent reservation of one device, as one host sees it.

    Every call raises ReservationsUnsupported where the device has none, and OSError when it may or
    may not have happened: repeating it is safe.
    """

    async def register(self, key: int) -> None:
        """Make `key` this host's, whatever it had registered before."""

    async def reserve(self, key: int) -> bool:
        """Hold the device; True if this host holds it afterwards, False if another one does."""

    async def preempt(self, key: int, victim: int) -> bool:
        """Unregister every host with the key `victim`, and hold the device in the place of one.

        If none of them held it, it has no holder, or the same one as before; and with its own key
        as `victim` this host is unregistered, too, unless the holder has that key. False: `victim`
        is not registered, or this host's key is not `key`: nothing has changed.
        """

    async def clear(self, key: int) -> bool:
        """Remove every registration and the reservation. False: this host's key is not `key`."""

    async def holder(self) -> int | None:
        """Return the key that holds the device, 0 if none does, None where it cannot be read."""

    async def close(self) -> None:
        """Let go of the device. Registration and reservation stay."""


class ReservationsUnsupported(SettingsError):
    """The device, or the kernel for it, has no persistent reservations."""


def reservation_key(cluster_id: str, host_id: str) -> int:
    """Return the key of a host in a cluster: 64 bits, never 0, the same after every restart."""
    digest = hashlib.blake2b(f"{cluster_id}\0{host_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


async def hold(reservation: Reservation, key: int) -> bool:
    """Register and reserve; False if another host holds the device."""
    await reservation.register(key)
    return await reservation.reserve(key)


async def take(reservation: Reservation, key: int, victims: Sequence[int], *, name: str) -> None:
    """Hold the device, if need be in place of one of `victims`. Returns when they are fenced.

    The own key among the victims is that of another machine with this host's id: an instance that
    this one replaces. It comes last, since it unregisters this host if a stranger holds the device.
    A call whose response was lost is repeated: `reserve` returns true for the holder. Raises Fenced
    when neither this host nor a victim holds the device: another taker was first.
    """
    own_last = sorted(victims, key=lambda victim: victim == key)
    for attempt in range(_ATTEMPTS):
        try:
            if await hold(reservation, key):
                return
            for victim in own_last:
                if await reservation.preempt(key, victim) and await hold(reservation, key):
                    return  # else the victim was registered, and another one holds the device
            break
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise Fenced(f"{name}: another host has taken the device meanwhile")
