"""The address of a block WAL, and what it takes to open or take over the slice it names.

`block:/path?option=value&...`; the options are fields of `BlockAddress`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from lakehead.storage.errors import SettingsError, StorageError, WrongLog
from lakehead.storage.event_logger import event_logger
from lakehead.storage.wal import disk
from lakehead.storage.wal.block import BlockWal
from lakehead.storage.wal.block_format import SLICES_MAX, sector_down
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.block_takeover import Judge, take_slice
from lakehead.storage.wal.deadline import Deadline, DeadlineDevice, DeviceStuck, OnStuck
from lakehead.storage.wal.device import FileDevice, IoThreads
from lakehead.storage.wal.holder import host_name
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation import Reservation, hold, reservation_key
from lakehead.storage.wal.reservation_ioctl import IoctlReservation
from lakehead.storage.wal.volume import (
    SIZE_MIN,
    Division,
    Volume,
    format_device,
    header_lock,
    open_slice,
    volume_image,
)
from lakehead.storage.wal.volume_file import ensure_file, explained, grow_file

T = TypeVar("T")

SIZE_DEFAULT = 1024 * 1024 * 1024
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_MAKING_TIMEOUT_S = 60.0
_POLL_S = 0.02
_log = event_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAddress:
    """The place of a block WAL, and the permissions to prepare it."""

    uri: str
    path: Path
    size: int = SIZE_DEFAULT
    """Bytes of a new file, or with `grow` of a file that is there; a disk has its own size."""
    slices: int = 1
    """A new slice takes this part of the volume: the number of nodes of a host."""
    grow: bool = False
    """Use a file or disk that has become larger."""
    format: str = ""
    """Take a disk: `yes` an empty one, its name or serial number whatever it carries."""
    reserves: bool = True
    """Hold a disk by a persistent reservation (`reservations=required`, or `none`)."""
    aborts: bool = True
    """A takeover ends the old owner's writes under way too (`preempt=abort`, or `plain`)."""
    is_exclusive: bool = False
    """No other host can have the disk while this one has it, so nothing more is needed to fence."""

    @classmethod
    def parse(cls, uri: str, place: str, options: dict[str, str]) -> BlockAddress:
        """Read the parts of an address. Raises SettingsError."""
        left = dict(options)
        address = cls(
            uri=uri,
            path=Path(place),
            size=parse_size(left.pop("size", str(SIZE_DEFAULT)), uri),
            slices=_number(left.pop("slices", "1"), uri),
            grow=_choice(left, "grow", "no", _YES_NO, uri),
            format=left.pop("format", ""),
            reserves=_choice(
                left, "reservations", "required", {"required": True, "none": False}, uri
            ),
            aborts=_choice(left, "preempt", "abort", {"abort": True, "plain": False}, uri),
        )
        if left:
            raise SettingsError(
                f"{uri}: a block WAL has no option {', '.join(left)}: known are size, slices, "
                "grow, format, reservations, preempt"
            )
        return address

    @property
    def division(self) -> Division:
        """The division of the volume into slices."""
        return Division(slices=self.slices, grow=self.grow)


@dataclass(slots=True)
class _Place:
    """An open device, and its reservation if it is a disk that has one."""

    file: FileDevice
    device: DeadlineDevice
    reservation: Reservation | None
    is_disk: bool


async def open_block_wal(
    address: BlockAddress,
    *,
    volume_id: bytes,
    node_id: int,
    host_id: str,
    cluster_id: str,
    settings: BlockWalSettings | None = None,
    incarnation: str = "",
    claim: Claim | None = None,
    may_be_new: bool = True,
    on_stuck: OnStuck | None = None,
) -> BlockWal:
    """Open the slice of a node; file, format and slice are made if need be, and if it `may_be_new`.
    `on_stuck` is called when the device has missed a deadline.

    Raises WrongLog (there is none, and it may not be new), SettingsError, StorageError,
    UnsupportedFormat, WalCorrupted; each says in one line what to do.
    """
    host_id = host_id or host_name()

    def image(capacity: int) -> list[tuple[int, bytes]]:
        return volume_image(
            volume_id=volume_id,
            capacity=capacity,
            node_id=node_id,
            host_id=host_id,
            cluster_id=cluster_id,
            slices=address.slices,
        )

    async def prepare_and_open(place: _Place) -> BlockWal:
        if place.is_disk:
            await _format_if_given(
                address, place, image, host_id, cluster_id, may_be_new=may_be_new
            )
        wal = await open_slice(
            place.device,
            node_id=node_id,
            host_id=host_id,
            cluster_id=cluster_id,
            division=address.division,
            reservation=place.reservation,
            settings=settings,
            incarnation=incarnation,
            claim=claim,
            may_be_new=may_be_new,
        )
        unwritten = partial(place.file.unwritten, *wal.extent)
        place.file.fill(await opening.run(unwritten, "a look for space that was never written"))
        return wal

    opening = _Opening(address, settings, on_stuck)
    async with opening.explained():
        is_there = await opening.run(address.path.exists, "a look for the file")
        if not may_be_new and not is_there:
            raise WrongLog(f"{address.path} does not exist")
        await _prepare_file(address, opening.threads, image(address.size))
        place = await opening.open_place()
        if on_stuck is not None:
            place.device.watch_submissions()
        return await prepare_and_open(place)


async def take_block_wal(
    address: BlockAddress,
    *,
    node_id: int,
    host_id: str,
    cluster_id: str,
    other_hosts: Sequence[str] = (),
    settings: BlockWalSettings | None = None,
    timeout_s: float = 10.0,
    taker: tuple[int, int] | None = None,
    judge: Judge | None = None,
) -> BlockWal:
    """Fence the holder of the slice of `node_id` there, and return its log; see `take_slice`."""
    host_id = host_id or host_name()
    opening = _Opening(address, settings)
    async with opening.explained():
        place = await opening.open_place()
        if place.is_disk and place.reservation is None and not address.is_exclusive:
            owner = (await Volume.read(place.device, cluster_id=cluster_id)).header.host_id
            if owner not in {"", host_id}:
                raise SettingsError(
                    f"{address.path} belongs to host {owner}, which cannot be fenced with "
                    "reservations=none: make sure it is gone, then open the WAL as its own node"
                )
        return await take_slice(
            place.device,
            node_id=node_id,
            host_id=host_id,
            cluster_id=cluster_id,
            reservation=place.reservation,
            other_hosts=other_hosts,
            settings=settings,
            timeout_s=timeout_s,
            taker=taker,
            judge=judge,
        )


def parse_size(text: str, uri: str) -> int:
    """Return a size in bytes, whole sectors. Raises SettingsError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if size < SIZE_MIN:
        raise SettingsError(f"{uri}: size={text} is not a size of at least {SIZE_MIN} bytes")
    return size & -4096


class _Opening:
    """The way to an open device: threads for calls that block, and a deadline on each of them.

    A device that hangs keeps its threads until its calls return. Such a device is not opened again
    before: a taker tries every few seconds, for as long as it takes.
    """

    _stuck: ClassVar[dict[Path, IoThreads]] = {}

    def __init__(
        self,
        address: BlockAddress,
        settings: BlockWalSettings | None,
        on_stuck: OnStuck | None = None,
    ) -> None:
        settings = settings or BlockWalSettings()
        self._address = address
        self._check_responding()
        self.threads = IoThreads(settings.writes_in_flight_max + 1)
        self._on_stuck = on_stuck
        self._deadline = Deadline(str(address.path), settings.device_timeout_s, self._missed)
        self._place: _Place | None = None

    async def run(self, call: Callable[[], T], what: str) -> T:
        """Run a call that blocks, on a thread. Raises what it raises, DeviceStuck."""
        running = self.threads.run(call)
        self._deadline.watch(running, what)
        return await running

    async def open_place(self) -> _Place:
        """Open the device. Raises OSError, SettingsError."""
        path, address = self._address.path, self._address
        device = await self.run(lambda: FileDevice.open(path, self.threads), "opening it")
        place = _Place(device, DeadlineDevice(device, self._deadline), None, is_disk=False)
        self._place = place
        place.is_disk = await self.run(path.is_block_device, "a look at its kind")
        if place.is_disk and address.reserves and not address.is_exclusive:
            place.reservation = await self.run(
                lambda: IoctlReservation.open(path, self._reserve, aborts=address.aborts),
                "opening it",
            )
        elif place.is_disk and not address.is_exclusive:
            _log.warning(
                "wal_without_reservation",
                device=device.name,
                meaning="nothing keeps another host that has this disk from writing to it",
            )
        return place

    @asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """Close what was opened if the body fails, and say in one line what to do."""
        path, size = self._address.path, self._address.size
        try:
            yield
        except BaseException as error:
            await self._close()
            if isinstance(error, OSError):
                raise explained(path, size, error) from error
            raise
        finally:
            if self._place is not None and self._place.reservation is not None:
                await self._place.reservation.close()

    async def _reserve(self, call: Callable[[], int]) -> int:
        return await self.run(call, "a call of its reservation")

    async def _close(self) -> None:
        if self._place is not None:
            await self._place.device.close()
        else:
            with suppress(DeviceStuck, TimeoutError):
                async with self._deadline.limit("the end of what is under way"):
                    await self.threads.close()

    def _missed(self, reason: str) -> None:
        self._stuck[self._address.path] = self.threads
        if self._on_stuck is not None:
            self._on_stuck(reason)

    def _check_responding(self) -> None:
        path = self._address.path
        if (before := self._stuck.get(path)) is not None:
            if not before.has_ended:
                raise StorageError(
                    f"{path} does not respond: an earlier call has not returned yet. Look at the "
                    "volume and the kernel's log"
                )
            del self._stuck[path]


async def _prepare_file(
    address: BlockAddress, threads: IoThreads, image: list[tuple[int, bytes]]
) -> None:
    """Make the file, or wait until the node of this host that was first has made it."""
    path = address.path
    try:
        async with asyncio.timeout(_MAKING_TIMEOUT_S):
            while not await threads.run(  # noqa: ASYNC110 - another process sends no event
                lambda: ensure_file(path, address.size, image)
            ):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise SettingsError(
            f"{path} has been in the making by another process for {_MAKING_TIMEOUT_S:.0f} s: "
            "stop it, or name another path for the WAL"
        ) from None
    if address.grow and not await threads.run(path.is_block_device):
        await threads.run(lambda: grow_file(path, address.size))


async def _format_if_given(
    address: BlockAddress,
    place: _Place,
    image: Callable[[int], list[tuple[int, bytes]]],
    host_id: str,
    cluster_id: str,
    *,
    may_be_new: bool,
) -> None:
    """Format the disk if the option says so and may say so. Raises WrongLog where it had to be."""
    device, path = place.device, address.path
    async with header_lock(device):
        if not await disk.may_be_formatted(device, path, address.format, cluster_id):
            return
        if not may_be_new:
            raise WrongLog(f"{path} is a disk without a log")
        disk.check_unused(path)
        if place.reservation is not None and not await hold(
            place.reservation, reservation_key(cluster_id, host_id)
        ):
            raise StorageError(f"{path} is held by another host and is not formatted")
        capacity = sector_down(device.capacity)
        await format_device(device, image(capacity))
        device.unlock(0, capacity)
        _log.warning("wal_disk_formatted", device=device.name, size=capacity)


def _number(text: str, uri: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= SLICES_MAX:
        raise SettingsError(f"{uri}: slices={text} is not a number from 1 to {SLICES_MAX}")
    return int(text)


def _choice(
    options: dict[str, str], name: str, default: str, values: dict[str, bool], uri: str
) -> bool:
    value = options.pop(name, default).lower()
    if value not in values:
        raise SettingsError(f"{uri}: {name}={value} is not one of {', '.join(values)}")
    return values[value]
