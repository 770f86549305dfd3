"""Makes a copy of a cluster's prefix, as S3 replication fills it, the cluster: in place.

    meta/promotion/<16 hex of the place>.json               the decision, put once
    meta/promotion/<16 hex of the place>-<nonce>.parquet    the metadata that were decided on

The copy has an older metadata log already. The restored one goes on above it: its checkpoint is the
newest of all, and a boundary closes what lies below. Then the older boundaries are deleted. A node
that was started here by mistake, and writes, looks for the boundary that it knows after each entry
that it puts: it finds the restored metadata, in which it is fenced. Object write-ahead logs are
sealed before their tails are read, as in a takeover: none is acknowledged after that.

The decision is put before any of that, by put-if-absent, and names the whole state. So a promotion
that was killed goes on with the same state, two at once make one cluster, and one that is repeated
later changes nothing. Entries that replication still delivers then are below the boundary.

A copy may be replicated once more, with the decision in it: so it names its place. A place is
promoted once.
"""

import hashlib
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.backup.manifest import list_manifests, named_objects
from lakehead.storage.backup.restore import (
    Corrections,
    RestorePoint,
    append_corrections,
    find_point,
)
from lakehead.storage.backup.restored_state import ENTRIES_STEP, restored_state
from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    RequestRefused,
    StoreUnavailable,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.checked_json import decode_checked, with_checksum
from lakehead.storage.garbage import listed
from lakehead.storage.metadata.beginning import (
    checkpoint_pieces,
    close_below_checkpoint,
    put_checkpoint,
)
from lakehead.storage.metadata.boundaries import delete_boundaries_below
from lakehead.storage.metadata.layout import BOUNDARIES, META, Listing
from lakehead.storage.metadata.log_reader import read_checkpoint_at
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store.encrypted import place_of
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.stream.wal_tails import nodes_in_cluster
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.protocol import WalFloor

PROMOTIONS = "meta/promotion/"
_VERSION = 1
_RETRY_S = 0.1
_RETRY_MAX_S = 5.0


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The decision to make a copy the cluster `cluster_id`: its metadata log begins with the
    checkpoint before entry `number`, whose state is in the object `state`. `time_ms` is when it was
    decided, milliseconds since the epoch.
    """

    version: int = _VERSION
    cluster_id: str
    number: int
    state: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """The result: the decision, and how many records were appended as corrections. `point` is None
    if an earlier try, or another process, had decided.
    """

    promotion: Promotion
    point: RestorePoint | None
    corrections: int = 0


async def promote_copy(
    store: ObjectStore, *, correct: Corrections, clock: Clock, rng: random.Random
) -> Promoted:
    """Make the newest complete state of a copy the cluster. It may be repeated at any time.

    Raises RequestRefused (there are backups in the store, or the copy still changes), NotFound (it
    has no complete state), CorruptObject, UnsupportedFormat, StoreUnavailable, OutcomeUnknown.
    """
    if await list_manifests(store):
        raise RequestRefused(f"{store.uri} holds backups, and not a copy that replication fills")
    found, point, corrections = await read_promotion(store), None, 0
    if found is None:
        point = await _sealed_point(store, clock, rng)
        now_ms = clock.now_ms()
        secret = f"{rng.getrandbits(256):064x}"
        keys = [one.key for one in await listed(store)]
        state = restored_state(point.state, keys=keys, node_secret=secret, time_ms=now_ms)
        state = await _above_all(store, state)
        records = await correct(store, state)
        state = await append_corrections(store, state, records, now_ms, rng)
        corrections = sum(map(len, records.values()))
        failpoint("promotion_corrected")
        await _refuse_changes(store, point)
        found, is_own = await _decide(store, state, now_ms, rng)
        if not is_own:
            point, corrections = None, 0
    failpoint("promotion_decided")
    await _publish(store, found, rng)
    return Promoted(promotion=found, point=point, corrections=corrections)


async def read_promotion(store: ObjectStore) -> Promotion | None:
    """Return the decision to promote the copy in this store; None: there is none. Raises
    CorruptObject, UnsupportedFormat, StoreUnavailable.
    """
    key = _decision_key(store)
    try:
        body = await store.get(key)
    except ObjectNotFound:
        return None
    return decode_checked(key, body, Promotion, newest=_VERSION)


async def is_promoted(store: ObjectStore) -> bool:
    """Return true if the copy in this store is a cluster by now. Raises as `read_promotion`."""
    found = await read_promotion(store)
    return found is not None and await _is_closed(store, found)


async def _is_closed(store: ObjectStore, promotion: Promotion) -> bool:
    boundary = Listing.of(await store.list(BOUNDARIES)).boundary
    return boundary is not None and boundary.number >= promotion.number


def _place(store: ObjectStore) -> str:
    """Return a name of the place of a store, as different processes have it."""
    place = place_of(store).rstrip("/")
    if store.uri.startswith("file:"):
        place = str(Path(place).resolve())
    return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()


def _decision_key(store: ObjectStore) -> str:
    return f"{PROMOTIONS}{_place(store)}.json"


async def _sealed_point(store: ObjectStore, clock: Clock, rng: random.Random) -> RestorePoint:
    """Return the newest complete state of a copy in which each write-ahead log is sealed, also that
    of a node that has started meanwhile.
    """
    point, sealed = await find_point(store), dict[int, int]()
    while True:
        nodes = nodes_in_cluster(point.state)
        if all(sealed.get(node.node_id) == node.epoch for node in nodes):
            return point
        await _seal_logs(store, point.state.cluster_id, nodes, clock, rng)
        sealed = {node.node_id: node.epoch for node in nodes}
        point = await find_point(store)


async def _seal_logs(
    store: ObjectStore,
    cluster_id: str,
    nodes: Iterable[NodeState],
    clock: Clock,
    rng: random.Random,
) -> None:
    """Put a seal at the end of the write-ahead log of each of these nodes."""
    for node in nodes:
        sealer = LogSealer(
            store,
            cluster_id=cluster_id,
            node_id=node.node_id,
            sealer_id=-1,
            incarnation=f"{rng.getrandbits(64):016x}",
            clock=clock,
            rng=rng,
        )
        await sealer.seal(WalFloor(node.wal_epoch, node.wal_floor), before=node.epoch + 1)
    failpoint("promotion_sealed")


async def _above_all(store: ObjectStore, state: MetadataImage) -> MetadataImage:
    """Return a state whose log goes on above all that is in the copy. More entries than a restored
    state leaves room for may have arrived beyond a missing object.
    """
    there = Listing.of(await store.list(META))
    numbers = (*there.entries, *there.checkpoints, *(one.number for one in there.boundaries))
    last = max(numbers, default=-1)
    return state if last < state.next_entry else replace(state, next_entry=last + ENTRIES_STEP)


async def _refuse_changes(store: ObjectStore, point: RestorePoint) -> None:
    """Raise RequestRefused if the copy has changed since a point was found: it would lose what
    arrives next, or objects that the point names.
    """
    gone = named_objects(point.state).keys() - {one.key for one in await listed(store)}
    if gone:
        raise RequestRefused(
            f"{min(gone)} was deleted from {store.uri} just now: stop its replication, then run "
            "this again"
        )
    entries = Listing.of(await store.list(META)).entries
    if _are_newer(entries, point):
        raise RequestRefused(
            f"entries of the metadata still arrive in {store.uri}: stop its replication and any "
            "node that writes there, then run this again"
        )


def _are_newer(entries: Collection[int], point: RestorePoint) -> bool:
    known = point.state.next_entry
    return sum(number >= known for number in entries) > point.entries_left


async def _decide(
    store: ObjectStore, state: MetadataImage, time_ms: int, rng: random.Random
) -> tuple[Promotion, bool]:
    """Put the decision for a state; return the one that was first, and true if it is that."""
    key = f"{PROMOTIONS}{_place(store)}-{rng.getrandbits(64):016x}.parquet"
    pieces = await checkpoint_pieces(state)
    backoff = Backoff(rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
    await put_if_absent(store, key, pieces, backoff)
    failpoint("promotion_state_put")
    made = Promotion(
        cluster_id=state.cluster_id, number=state.next_entry, state=key, time_ms=time_ms
    )
    body = with_checksum(msgspec.json.encode(made))
    while True:
        try:
            await store.create(_decision_key(store), [body])
        except ObjectExists:
            pass  # another process's, or that of an earlier try: reading it decides
        except OutcomeUnknown:
            await backoff.wait()
            continue
        decided = await read_promotion(store)
        if decided is not None:
            return decided, decided == made


async def _publish(store: ObjectStore, promotion: Promotion, rng: random.Random) -> None:
    """Make the state that was decided on the newest of the metadata log, and close what is below.
    Nothing is done where that is done.
    """
    if not await _is_closed(store, promotion):
        state = await read_checkpoint_at(store, promotion.state)
        await put_checkpoint(store, state)
        failpoint("promotion_published")
        await close_below_checkpoint(store, state, rng)
        failpoint("promotion_closed")
    if await delete_boundaries_below(store, promotion.number) is None:
        raise StoreUnavailable(
            f"older boundaries of the metadata in {store.uri} come back: is replication still on?"
        )
