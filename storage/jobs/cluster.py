"""Open the cluster of a work item, a store and the metadata log, while the item runs."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import ObjectStore, open_retrying_store

T = TypeVar("T")


def in_cluster(
    uri: str, writer: str, work: Callable[[ObjectStore, MetadataLog], Awaitable[T]]
) -> T:
    """Run `work` on the cluster at `uri`, whose metadata log is read to its end; `writer` is the
    node that may write to it. Blocks. Raises SettingsError when there is no cluster.
    """

    async def run() -> T:
        rng = random.SystemRandom()
        store = open_retrying_store(uri, rng=rng)
        try:
            log = await MetadataLog.open(
                store,
                writer_id=f"{writer}/{rng.getrandbits(64):016x}",
                clock=SystemClock(),
                rng=rng,
            )
            if not log.state.cluster_id:
                raise SettingsError(f"there is no cluster in {store.uri}")
            return await work(store, log)
        finally:
            await store.close()

    return asyncio.run(run())
