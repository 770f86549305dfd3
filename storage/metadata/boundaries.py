"""Create the boundary of a metadata log, and delete older ones: `log_reader` explains their use."""

import random

from lakehead.storage.errors import ObjectExists, OutcomeUnknown
from lakehead.storage.metadata.layout import BOUNDARIES, Boundary, Listing
from lakehead.storage.object_store.protocol import ObjectStore

_LISTINGS_MAX = 10


async def create_boundary(store: ObjectStore, number: int, rng: random.Random) -> None:
    """Close the entries below `number`, under a name of its own, at each try a new one. Raises
    StoreUnavailable.
    """
    while True:
        boundary = Boundary(number=number, nonce=f"{rng.getrandbits(64):016x}")
        try:
            await store.create(boundary.key, [b"%d\n" % number])
            return
        except (ObjectExists, OutcomeUnknown):
            continue


async def delete_boundaries_below(store: ObjectStore, number: int) -> int | None:
    """Delete the boundaries below `number`, until a listing shows none and one at it or above: a
    process that goes on at an older entry notices the newer boundary after its next put. Returns
    how many were deleted; None if no such listing came: nothing below may be deleted then. Raises
    StoreUnavailable.
    """
    deleted = 0
    for _ in range(_LISTINGS_MAX):
        found = Listing.of(await store.list(BOUNDARIES)).boundaries
        if not found or found[-1].number < number:
            return None
        older = [one.key for one in found if one.number < number]
        if not older:
            return deleted
        await store.delete(older)
        deleted += len(older)
    return None
