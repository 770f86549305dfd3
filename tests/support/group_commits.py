"""Commits of consumer groups, as a broker stores them."""

from collections.abc import Mapping
from pathlib import Path

from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_offset,
)
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic


def commit_offsets(
    root: Path, group: str, topic: str, offsets: Mapping[int, int], *, at_ms: int = 0
) -> None:
    """Have a group commit offsets of a topic, by partition, and upload them."""
    records = [
        TestRecord(
            offset=0,
            key=encode_key(OffsetKey(group_id=group, topic=topic, partition=partition)),
            value=encode_offset(
                CommittedOffset(offset=offset, metadata="", commit_timestamp_ms=at_ms)
            ),
        )
        for partition, offset in offsets.items()
    ]
    write_topic(root, "__consumer_offsets", {0: records})
