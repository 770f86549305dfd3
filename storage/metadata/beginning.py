"""Makes a whole state the newest of a metadata log, by one checkpoint: where a catalog was rebuilt,
or a cluster is restored. Its number is above everything that is in the log.
"""

import random

from lakehead.storage.errors import CorruptObject, ObjectExists
from lakehead.storage.format import checkpoint as checkpoint_file
from lakehead.storage.metadata.boundaries import create_boundary
from lakehead.storage.metadata.checkpoints import tables_of
from lakehead.storage.metadata.layout import checkpoint_key
from lakehead.storage.metadata.log_reader import in_steps, read_checkpoint
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore


async def checkpoint_pieces(state: MetadataImage) -> list[bytes]:
    """Return the bytes of the checkpoint of a state, in pieces."""
    return await in_steps(checkpoint_file.encode(await in_steps(tables_of(state))))


async def put_checkpoint(store: ObjectStore, state: MetadataImage) -> None:
    """Put the checkpoint of a state: from this moment it is the log's newest. Raises
    StoreUnavailable, OutcomeUnknown.
    """
    pieces = await checkpoint_pieces(state)
    try:
        await store.create(checkpoint_key(state.next_entry), pieces)
    except ObjectExists:
        pass  # an earlier try of the same


async def close_below_checkpoint(
    store: ObjectStore, state: MetadataImage, rng: random.Random
) -> None:
    """Check the checkpoint of a state, and close the entries below it. Raises CorruptObject (it is
    another one), StoreUnavailable.
    """
    number = state.next_entry
    if await read_checkpoint(store, number) != state:
        raise CorruptObject(checkpoint_key(number), 0, "it differs from the bytes to write")
    await create_boundary(store, number, rng)
