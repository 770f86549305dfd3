"""A rebuilt state becomes the cluster's: one checkpoint, put where nodes look for the newest one.

Its number is above that of everything that lies under `meta/`, so that putting it is the one moment
at which the new catalog takes the place of the old; before it the old one was not touched, and a
copy of it is kept. The boundary that follows says that nothing older counts.
"""

import random
from collections.abc import Sequence
from contextlib import suppress

from lakehead.storage.errors import CorruptObject, ObjectExists, OutcomeUnknown
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.metadata.checkpoints import tables_of
from lakehead.storage.metadata.layout import EARLIER, META, Boundary, Listing, checkpoint_key
from lakehead.storage.metadata.log_reader import in_steps, read_checkpoint
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore


def next_number(found: Sequence[ObjectMeta]) -> int:
    """Return the first number above all that are listed under `meta/`; 0 where nothing is."""
    listing = Listing.of(found)
    numbers = [*listing.entries, *listing.checkpoints, *(one.number for one in listing.boundaries)]
    return max(numbers, default=-1) + 1


async def publish(store: ObjectStore, state: ClusterState, rng: random.Random) -> str:
    """Make `state` the cluster's. Returns where the old metadata are kept; empty if there were
    none. Raises StoreUnavailable, OutcomeUnknown, CorruptObject.
    """
    found = await store.list(META)
    number, kept = state.next_entry, ""
    # Also where there is nothing to keep: objects that this state leaves out are not garbage before
    # an operator has looked.
    with suppress(ObjectExists):
        await store.create(f"{EARLIER}{number}.rebuilt", [b"%d\n" % number])
    if found:
        kept = f"{EARLIER}{number}/"
        await _copy([one.key for one in found], kept, store)
        failpoint("rebuild_copied")
    pieces = await in_steps(checkpoint_file.encode(await in_steps(tables_of(state))))
    try:
        await store.create(checkpoint_key(number), pieces)
    except ObjectExists:
        pass  # an earlier try of the same
    failpoint("rebuild_published")
    if await read_checkpoint(store, number) != state:
        raise CorruptObject(checkpoint_key(number), 0, "it is not what was to be written")
    while True:
        try:
            boundary = Boundary(number=number, nonce=f"{rng.getrandbits(64):016x}")
            await store.create(boundary.key, [b"%d\n" % number])
            return kept
        except (ObjectExists, OutcomeUnknown):
            continue


async def _copy(keys: Sequence[str], folder: str, store: ObjectStore) -> None:
    for key in keys:
        try:
            await store.create(folder + key.removeprefix(META), [await store.get(key)])
        except ObjectExists:
            continue  # by an earlier try
