"""What an object says of the streams in it."""

from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.records import HEADERS, INCREMENTAL, WHOLE
from lakehead.storage.metadata.state import ClusterState


def stream_info(state: ClusterState, stream_id: int, blob: bytes | None) -> StreamInfo:
    """Describe a stream for an object's extension block; `blob` is its partition's state."""
    stream = state.streams.get(stream_id)
    if stream is None:
        return StreamInfo(stream_id=stream_id, state=blob)
    return StreamInfo(
        stream_id=stream_id,
        topic_id=stream.topic_id,
        topic=state.topic_names[stream.topic_id],
        partition=stream.partition,
        state=blob,
    )


def state_kind(info: StreamInfo) -> str:
    """Return what an object carries of a partition's state (`CommittedRange.state`)."""
    if info.state is not None:
        return WHOLE if info.state_since < 0 else INCREMENTAL
    return HEADERS if info.headers else ""
