"""A node without a broker, in a process of its own: it appends to streams until it is ended, and
says what was acknowledged.

`python -m tests.support.engine_process STORE WAL NODE_ID FIRST_STREAM [give|take|named]` prints,
for each batch that is durable, `<stream id> <end offset>`. It opens three streams of the six of a
topic. Nothing is uploaded before a gigabyte has gathered. With `give` it hands its streams over
after a while; with `take` it takes over what node 0 left instead, and ends; with `named` it says in
the metadata which process it is, so that others may end it.
"""

import asyncio
import random
import sys

from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.settings import of_environment
from lakehead.storage.format.record_batch import patch
from lakehead.storage.metadata.records import CreateStream, CreateTopic, FenceNode, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import open_store
from lakehead.storage.object_store.encrypted import EncryptedStore, encrypted
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.address import public_address
from lakehead.storage.wal.holder import HostProcesses
from tests.support.record_batches import TestRecord, encode_batch

HOST = "host-of-the-test"
OPENED = 3
"""Streams that a process opens."""
LAZY = StorageSettings(
    upload_size=1 << 30, cache_size=1 << 32, upload_age_s=3600, metadata_poll_s=0.02
)
RECORDS = [TestRecord(offset=n, timestamp=1000 + n, key=None, value=b"v" * 50) for n in range(10)]
BATCH = encode_batch(RECORDS)


def engine_store(uri: str) -> EncryptedStore:
    """Return the store of a node."""
    return encrypted(
        open_store(uri), of_environment(), clock=SystemClock(), rng=random.SystemRandom()
    )


async def open_engine(
    store_uri: str, wal_uri: str, node_id: int, scope: TaskScope, process: str = ""
) -> StreamEngine:
    """Open the engine of a node, on the host that all nodes of a test share. It encrypts what it
    writes if the environment says so.
    """
    store = engine_store(store_uri)

    async def opener(owner: WalOwner) -> WriteAheadLog:
        return await open_wal(
            wal_uri,
            rng=owner.rng,
            node_id=node_id,
            cluster_id=owner.cluster_id,
            host_id=HOST,
            owner=owner,
            data_keys=store.keys,
        )

    return await StreamEngine.open(
        store=store,
        open_wal=opener,
        node=NodeIdentity(
            node_id=node_id,
            host="h",
            port=1,
            host_id=HOST,
            wal=public_address(wal_uri),
            process=process,
        ),
        clock=SystemClock(),
        rng=random.Random(),
        settings=LAZY,
        scope=scope,
    )


def unrecovered_wals(engine: StreamEngine, store_uri: str, wal_uri: str) -> UnrecoveredWals:
    """Return the logs that an engine of `open_engine` may take over."""
    return UnrecoveredWals(engine, wal_uri, data_keys=engine_store(store_uri).keys)


def creation(state: MetadataImage) -> list[Record]:
    """Return what makes the topic, unless it is there."""
    if state.topics:
        return []
    streams = [CreateStream(stream_id=n, topic_id="a" * 32, partition=n) for n in range(2 * OPENED)]
    return [CreateTopic(name="t", topic_id="a" * 32), *streams]


def append(stream: Stream) -> None:
    """Append a batch; say so once it is durable."""
    batch = bytearray(BATCH)
    patch(batch, 0, stream.next_offset, stream.epoch)
    end = stream.next_offset + len(RECORDS)

    def on_done(error: Exception | None) -> None:
        if error is None:
            print(stream.stream_id, end, flush=True)

    stream.append(memoryview(batch), count=len(RECORDS), max_timestamp=1009, on_done=on_done)


async def fence(engine: StreamEngine, node_id: int) -> NodeState:
    """End a node's epoch, unless somebody else did."""
    state = await engine.metadata.refresh()
    node = state.nodes[node_id]
    if not node.is_fenced:
        state = await engine.metadata.commit([FenceNode(node_id=node_id, epoch=node.epoch)])
    return state.nodes[node_id]


async def main(store_uri: str, wal_uri: str, node_id: int, first: int, action: str = "") -> None:
    """Append until the process is ended or fenced."""
    scope = TaskScope(lambda name, error: None)
    process = HostProcesses().current().name if action == "named" else ""
    engine = await open_engine(store_uri, wal_uri, node_id, scope, process)
    if action == "take":
        left = unrecovered_wals(engine, store_uri, wal_uri)
        await engine.take_over(await fence(engine, 0), left.open)
        return
    await engine.metadata.commit_with(creation)
    streams = await engine.open_streams(range(first, first + OPENED))
    if action == "give":
        scope.spawn(give(engine), name="give")
    while all(stream.is_open for stream in streams):
        for stream in streams:
            if stream.next_offset - stream.confirmed_offset < 100:
                append(stream)
        await asyncio.sleep(0.001)


async def give(engine: StreamEngine) -> None:
    """Hand everything over after a while."""
    await asyncio.sleep(0.3)
    await engine.hand_over(list(engine.streams))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]))
