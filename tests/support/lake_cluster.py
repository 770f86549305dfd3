"""A cluster in an object store without a broker: topics, objects and metadata made by hand."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from lakehead.storage.clock import SystemClock
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.partition_state import PartitionState, encode_state
from lakehead.storage.format.producer_headers import producer_headers
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    HEADERS,
    WHOLE,
    CommitObjects,
    CommittedObject,
    CommittedRange,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    OpenStream,
    RegisterNode,
    TrimStream,
)
from lakehead.storage.object_store import ObjectStore, open_store


class LakeCluster:
    """Node 1 of a new cluster in `store`, whose calls block. `write` makes one object per call."""

    def __init__(self, store: str | ObjectStore) -> None:
        self._place = store
        self._objects = 0
        self._streams: dict[tuple[str, int], int] = {}
        self._topic_ids: dict[str, str] = {}
        self._topics_made = 0

        async def create(log: MetadataLog) -> None:
            await log.create_cluster("test-cluster")
            node = RegisterNode(node_id=1, epoch=0, incarnation="a", host="localhost", port=9092)
            await log.commit([node])

        self._run(create)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        async def create(log: MetadataLog) -> None:
            self._topics_made += 1
            topic_id = f"{self._topics_made:032x}"
            await log.commit([CreateTopic(name=name, topic_id=topic_id)])
            self._topic_ids[name] = topic_id

        self._run(create)
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, count: int) -> None:
        async def add(log: MetadataLog) -> None:
            topic_id, known = self._topic_ids[name], len(log.state.topics[name].partitions)
            streams = range(log.state.next_stream_id, log.state.next_stream_id + count)
            added = {(name, known + place): stream for place, stream in enumerate(streams)}
            created = [
                CreateStream(stream_id=stream, topic_id=topic_id, partition=number)
                for (_, number), stream in added.items()
            ]
            opened = [OpenStream(stream_id=s, epoch=0, node_id=1, node_epoch=0) for s in streams]
            await log.commit([*created, *opened])
            self._streams |= added

        self._run(add)

    def delete_topic(self, name: str) -> None:
        async def delete(log: MetadataLog) -> None:
            await log.commit([DeleteTopic(topic_id=self._topic_ids[name])])

        self._run(delete)
        self._streams = {id_: one for id_, one in self._streams.items() if id_[0] != name}

    def write(
        self,
        batches: Mapping[tuple[str, int], Sequence[bytes]],
        *,
        state: PartitionState | None = None,
    ) -> str:
        """Write one object with these batches of (topic, partition), commit it, return its key.
        `state` is that of all the partitions, without one the headers of batches go along.
        """
        self._objects += 1
        key = f"data/00/1-1-{self._objects}"
        kind = "sso" if len(batches) > 1 else "so"
        writer = ObjectWriter(
            kind=kind,
            cluster_id="test-cluster",
            node_id=1,
            node_epoch=1,
            writer_id="test",
            created_ms=1,
        )
        for id_, stream in sorted(self._streams.items(), key=lambda item: item[1]):
            if id_ not in batches:
                continue
            info = StreamInfo(
                stream_id=stream,
                topic_id=self._topic_ids[id_[0]],
                topic=id_[0],
                partition=id_[1],
                state=None if state is None else encode_state(state),
                headers=producer_headers(batches[id_]) if state is None else None,
            )
            writer.begin_stream(info)
            for batch in batches[id_]:
                header = read_header(batch)
                count = header.last_offset_delta + 1
                writer.add(0, header.base_offset, count, batch, header.max_timestamp)
        written = writer.finish()
        committed = CommittedObject(
            key=key,
            kind=kind,
            size=written.size,
            created_ms=1,
            ranges=tuple(
                CommittedRange(
                    stream_id=span.stream_id,
                    epoch=0,
                    start_offset=span.start_offset,
                    end_offset=span.end_offset,
                    max_timestamp=span.max_timestamp,
                    size=span.size,
                    state=HEADERS if state is None else WHOLE,
                )
                for span in written.ranges
            ),
        )

        async def put(log: MetadataLog) -> None:
            await self._store.create(key, written.pieces)
            await log.commit([CommitObjects(node_id=1, node_epoch=0, objects=(committed,))])

        self._run(put)
        return key

    def trim(self, topic: str, partition: int, start_offset: int) -> None:
        async def put(log: MetadataLog) -> None:
            stream = self._streams[topic, partition]
            await log.commit([TrimStream(stream_id=stream, start_offset=start_offset)])

        self._run(put)

    def delete_object(self, key: str) -> None:
        async def delete(log: MetadataLog) -> None:
            await self._store.delete([key])

        self._run(delete)

    def _run(self, work: Callable[[MetadataLog], Awaitable[None]]) -> None:
        async def with_log() -> None:
            place = self._place
            self._store = open_store(place) if isinstance(place, str) else place
            log = await MetadataLog.open(
                self._store, writer_id="test", clock=SystemClock(), rng=random.Random(1)
            )
            await work(log)
            if isinstance(place, str):
                await self._store.close()

        asyncio.run(with_log())
