"""Producer ids: reserved in blocks in the metadata log, so that no id is ever given twice."""

import asyncio
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import ProducerIdBlock, Record
from lakehead.storage.metadata.state import MetadataImage

BLOCK = 1000
_WAIT_S = 20.0
"""Less than clients wait for a response."""


class ProducerIds:
    """Hands out ids, each once. A block that was begun is abandoned when the node stops."""

    def __init__(self, metadata: MetadataLog, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._planned = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return an unused id. Raises StorageError; KafkaError (COORDINATOR_LOAD_IN_PROGRESS, as of
        Kafka's `ProducerIdManager`) if no block is reserved in time: the client sends the request
        again.
        """
        try:
            async with Deadline(_WAIT_S).limit():
                return await self._take()
        except KafkaError as error:
            if error.code is not ErrorCode.request_timed_out:
                raise
            raise KafkaError(ErrorCode.coordinator_load_in_progress) from None

    async def _take(self) -> int:
        async with self._lock:
            if self._next == self._end:
                await self._metadata.commit_with(self._plan)
                self._next, self._end = self._planned, self._planned + BLOCK
            taken = self._next
            self._next += 1
            return taken

    def _plan(self, state: MetadataImage) -> Sequence[Record]:
        self._planned = state.next_producer_id  # others' blocks may follow by the time it is known
        return [ProducerIdBlock(node_id=self._node_id, start=self._planned, count=BLOCK)]
