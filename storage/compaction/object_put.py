"""How a job puts an object: under a name that nobody else has, and again while nobody knows."""

import asyncio
import random

from lakehead.storage.errors import ObjectExists, OutcomeUnknown
from lakehead.storage.format.object_writer import WrittenObject
from lakehead.storage.object_store.protocol import ObjectStore

_RETRY_S = 0.1
_RETRY_MAX_S = 10.0
_TRIES = 10


async def put_object(
    store: ObjectStore, key: str, written: WrittenObject, rng: random.Random
) -> None:
    """Write an object under a name of a job. Raises StoreUnavailable, OutcomeUnknown."""
    pause = _RETRY_S
    for tries in range(1, _TRIES + 1):
        try:
            await store.create(key, written.pieces)
            return
        except ObjectExists:
            return  # an earlier try of ours
        except OutcomeUnknown:
            if tries == _TRIES:
                raise
        await asyncio.sleep(pause * (0.5 + rng.random()))
        pause = min(pause * 2, _RETRY_MAX_S)
