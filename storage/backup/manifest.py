"""The names and the manifests of backups in a store.

backup/manifest/<20-digit number>.json             backup `number`: put last, so it is complete
backup/state/<20-digit number>-<nonce>.parquet     the metadata of a backup, as a checkpoint
backup/restoring                                   a restore in place has begun
data/…, wal/…                                      the objects that the metadata name

A manifest is a JSON object with its CRC-32C in front (`lakehead.storage.format.checked_json`). No
name is used twice. The metadata are those of the cluster as if its nodes had been recovered at that
moment: objects of a write-ahead log that count are named as objects with data.
"""

import msgspec

from lakehead.storage.errors import ObjectNotFound, SettingsError
from lakehead.storage.format.checked_json import decode_checked, with_checksum
from lakehead.storage.metadata.log_reader import read_checkpoint_at
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore

PREFIX = "backup/"
MANIFESTS = "backup/manifest/"
_STATES = "backup/state/"
RESTORING = "backup/restoring"
"""The key of the mark that a restore in place puts before it looks at the backups for the last
time. A process that deletes objects looks for it after it has deleted the manifest that named them.
"""
_JSON = ".json"
_DIGITS = 20
_VERSION = 1


class LogElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose write-ahead log is not in the cluster's store: records that it acknowledged and
    had not uploaded are not in the backup. `streams` were open on it.
    """

    node_id: int
    wal: str
    streams: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup.

    It has all that was in the cluster's store before `position_ms` (milliseconds since the epoch,
    by the clock of the process that made it). `state` is the key of its metadata, which are those
    below entry `next_entry`. They name `objects` objects of `size` bytes in all; `tail_objects` of
    them are of write-ahead logs. Of those that were copied by this backup some may be `damaged`:
    their checksums were wrong at the source.
    """

    version: int = _VERSION
    number: int
    cluster_id: str
    position_ms: int
    next_entry: int
    state: str
    objects: int
    size: int
    tail_objects: int = 0
    logs_elsewhere: tuple[LogElsewhere, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of its object."""
        return manifest_key(self.number)

    def encode(self) -> bytes:
        """Return its bytes."""
        return with_checksum(msgspec.json.encode(self))


def manifest_key(number: int) -> str:
    """Return the key of the manifest of backup `number`."""
    return f"{MANIFESTS}{number:0{_DIGITS}d}{_JSON}"


def manifest_number(key: str) -> int | None:
    """Return the number of the backup whose manifest has this key; None if none has."""
    digits = key.removeprefix(MANIFESTS).removesuffix(_JSON)
    return int(digits) if digits.isdecimal() and key == manifest_key(int(digits)) else None


def state_key(number: int, nonce: int) -> str:
    """Return a key for the metadata of backup `number`; `nonce` has 64 bits."""
    return f"{_STATES}{number:0{_DIGITS}d}-{nonce:016x}.parquet"


async def list_manifests(store: ObjectStore, *, after: int = -1) -> list[int]:
    """Return the numbers of the backups in a store above `after`, ascending. Raises
    StoreUnavailable.
    """
    start_after = manifest_key(after) if after >= 0 else ""
    found = await store.list(MANIFESTS, start_after=start_after)
    numbers = {manifest_number(one.key) for one in found}  # a store may list a name twice
    return sorted(number for number in numbers if number is not None)


async def is_restoring(store: ObjectStore) -> bool:
    """Return true if a restore in place has begun among these backups: by the mark itself, since a
    listing may be older than it. Raises StoreUnavailable.
    """
    try:
        await store.get(RESTORING)
    except ObjectNotFound:
        return False
    return True


async def refuse_backups(store: ObjectStore) -> None:
    """Raise SettingsError if a store has backups: no new cluster may be made there."""
    if await list_manifests(store):
        raise SettingsError(
            f"{store.uri} holds backups of a cluster: restore one with lakehead restore, or give "
            "the node another store"
        )


async def read_manifest(store: ObjectStore, number: int) -> Manifest:
    """Return the manifest of a backup. Raises ObjectNotFound, StoreUnavailable, CorruptObject,
    UnsupportedFormat.
    """
    key = manifest_key(number)
    return decode_checked(key, await store.get(key), Manifest, newest=_VERSION)


async def read_state(store: ObjectStore, manifest: Manifest) -> MetadataImage:
    """Return the metadata of a backup. Raises as `read_manifest`."""
    return await read_checkpoint_at(store, manifest.state)


def named_objects(state: MetadataImage) -> dict[str, int]:
    """Return the keys and sizes (bytes) of the objects that streams refer to."""
    unreferenced = state.unreferenced
    return {key: one.size for key, one in state.objects.items() if key not in unreferenced}
