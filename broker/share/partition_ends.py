"""The ends of partitions, wherever they are led: for the lag of share groups (KIP-1226)."""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.persister import Leaders, RequestSender
from lakehead.storage.errors import LakeheadError

_KEY, _VERSION = 2, 7
_LATEST = -1
_NO_EPOCH = -1


class PartitionEnds:
    """Reads the ends of partitions from their leaders, by ListOffsets requests."""

    def __init__(self, client: RequestSender, leaders: Leaders) -> None:
        self._client = client
        self._leaders = leaders

    async def end(self, topic: str, index: int) -> int | None:
        """Return the high watermark of a partition; None if its leader did not say so."""
        node_id = self._leaders.leader((topic, index))
        if node_id is None:
            return None
        try:
            response = await self._client.send(node_id, _KEY, _VERSION, _request(topic, index))
        except (OSError, TimeoutError, MalformedFrame, LakeheadError):
            return None
        (found,) = (one for part in response.topics for one in part.partitions)
        return int(found.offset) if found.error_code is ErrorCode.none else None


def _request(topic: str, index: int) -> Any:
    module = schema(_KEY, _VERSION).request_module
    partition = entity(
        module,
        "ListOffsetsPartition",
        partition_index=index,
        current_leader_epoch=_NO_EPOCH,
        timestamp=_LATEST,
    )
    return entity(
        module,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=[entity(module, "ListOffsetsTopic", name=topic, partitions=[partition])],
    )
