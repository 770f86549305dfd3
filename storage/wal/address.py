"""The address of a WAL, as users write it: which kind it is, where, and how large."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from lakehead.storage.aws.volumes import Volumes
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import SettingsError
from lakehead.storage.wal.block import BlockWal
from lakehead.storage.wal.block_address import (
    SIZE_DEFAULT,
    BlockAddress,
    open_block_wal,
    parse_size,
    take_block_wal,
)
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.block_takeover import Judge
from lakehead.storage.wal.deadline import OnStuck
from lakehead.storage.wal.ebs import FOUND, attached, is_ebs, located
from lakehead.storage.wal.memory import MemoryWal
from lakehead.storage.wal.object.address import open_object_wal
from lakehead.storage.wal.protocol import Claim, WalOwner, WriteAheadLog

_UNKNOWN = "{} is not a WAL: write block:/path/to/file, object: or memory:"


async def open_wal(
    uri: str,
    *,
    rng: random.Random,
    node_id: int = 0,
    cluster_id: str = "",
    host_id: str = "",
    settings: BlockWalSettings | None = None,
    owner: WalOwner | None = None,
    volumes: Volumes | None = None,
    claim: Claim | None = None,
    on_stuck: OnStuck | None = None,
    data_keys: DataKeys | None = None,
) -> WriteAheadLog:
    """Open a write-ahead log; the caller then calls `recover()` and `start()`.

    - `block:/path/wal[?size=1GiB&slices=N]`: a file, made on first use. Its size is fixed then; a
      later `size` counts with `grow=yes` only. A new node gets the N-th part as its slice.
    - `block:/dev/disk/by-id/x[?format=yes]`: a whole disk; `BlockAddress` has all options.
    - `block:ebs:NAME[?...]`: an EBS volume by its id or slot, attached if need be by `volumes`
      (those of this machine); `ebs_address` has the names.
    - `object:[s3://bucket/prefix][?linger_ms=...]`: objects in the cluster's store, or in another;
      `open_object_wal` has all options. Only for an engine, which is the `owner`.
    - `memory:[?size=...]`: nothing survives the process.

    `rng` makes the id of a new volume. By `claim` (else the owner's) a node has its volume back
    from a host that took it over; without one it is refused. An empty `cluster_id` is not checked.
    `on_stuck` is called when a device has not completed a call in time: the process has to end
    then. `data_keys` encrypt and decrypt the log, if any. Raises SettingsError, StorageError (no
    room), Fenced, UnsupportedFormat, WalCorrupted.
    """
    kind, place, options = _parts(uri)
    if kind == "object":
        if owner is None:
            raise SettingsError(f"{uri}: an object WAL is opened by an engine only")
        return await open_object_wal(uri, place, options, owner, data_keys)
    if kind == "memory" and not place:
        size = parse_size(options.pop("size", str(SIZE_DEFAULT)), uri)
        if options:
            raise SettingsError(f"{uri}: a WAL in memory has no option {', '.join(options)}")
        return MemoryWal(capacity=size)
    if kind != "block" or not place:
        raise SettingsError(_UNKNOWN.format(uri.partition("?")[0]))
    wal = await open_block_wal(
        await _block_address(uri, place, options, volumes, is_own=True),
        volume_id=rng.randbytes(16),
        node_id=node_id,
        host_id=host_id,
        cluster_id=cluster_id,
        settings=settings,
        incarnation="" if owner is None else owner.incarnation,
        claim=claim if owner is None else owner.claim,
        may_be_new=owner is None or owner.may_be_new,
        on_stuck=on_stuck,
    )
    if data_keys is not None:
        wal.use_keys(data_keys)
    return wal


async def take_wal(
    uri: str,
    *,
    node_id: int,
    cluster_id: str,
    host_id: str = "",
    other_hosts: Sequence[str] = (),
    timeout_s: float = 10.0,
    taker: tuple[int, int] | None = None,
    judge: Judge | None = None,
    volumes: Volumes | None = None,
    settings: BlockWalSettings | None = None,
    data_keys: DataKeys | None = None,
) -> BlockWal:
    """Fence the holder of the slice of `node_id` in the block WAL at `uri`, and open it. When this
    returns, nothing that the old holder writes is acknowledged any more: the caller reads with
    `recover()`, then frees with `trim()`, then closes, or goes on with `start()`. The fence, and
    the errors, are those of `lakehead.storage.wal.block_takeover.take_slice`. An EBS volume is
    attached first if it is not, by `volumes`. `data_keys` decrypt the log, if it is encrypted.
    """
    kind, place, options = _parts(uri)
    if kind != "block" or not place:
        raise SettingsError(f"{uri} is not a block WAL: only block WALs can be taken over in place")
    wal = await take_block_wal(
        await _block_address(uri, place, options, volumes, is_own=False),
        node_id=node_id,
        host_id=host_id,
        cluster_id=cluster_id,
        other_hosts=other_hosts,
        timeout_s=timeout_s,
        taker=taker,
        judge=judge,
        settings=settings,
    )
    if data_keys is not None:
        wal.use_keys(data_keys)
    return wal


async def locate_wal(uri: str, volumes: Volumes | None = None) -> str:
    """Return a node's WAL address with what only its surroundings show: of an EBS volume its id,
    its zone and whether hosts share it; any other stays as it is. Raises SettingsError,
    StorageError.
    """
    kind, place, options = _parts(uri)
    if kind == "block" and is_ebs(place):
        return await located(uri, place, options, volumes)
    return uri


def public_address(uri: str) -> str:
    """Return a WAL's address as the cluster may know it: what others need to find it, and nothing
    that opens a store. Raises SettingsError.
    """
    kind, place, options = _parts(uri)
    if kind in {"object", "memory"}:
        return f"{kind}:{place}"
    if kind != "block" or not place:
        raise SettingsError(_UNKNOWN.format(uri.partition("?")[0]))
    kept = [(name, value) for name, value in options.items() if name in _FENCING]
    path = f"block:{place if is_ebs(place) else Path(place).absolute()}"
    return f"{path}?{urlencode(kept)}" if kept else path


_FENCING = ("reservations", "preempt", *FOUND)
"""The options of a block WAL that a taker needs too."""


async def _block_address(
    uri: str, place: str, options: dict[str, str], volumes: Volumes | None, *, is_own: bool
) -> BlockAddress:
    if is_ebs(place):
        return await attached(uri, place, options, volumes, is_own=is_own)
    return BlockAddress.parse(uri, place, options)


def _parts(uri: str) -> tuple[str, str, dict[str, str]]:
    kind, _, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    return kind, place, dict(parse_qsl(query, keep_blank_values=True))
