"""Share groups of a restored cluster go on where they were, as far as records are there."""

import asyncio
from pathlib import Path

from lakehead.broker.coordinator.share.record_formats import (
    ShareSnapshot,
    encode_key,
    encode_snapshot,
)
from lakehead.broker.coordinator.share.share_states import ShareStates
from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore, ObjectStore
from tests.integration.test_compaction_crashes import in_log
from tests.support.backups import back_up, bring_back
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic


async def share_states(store: ObjectStore, state: MetadataImage) -> dict[str, ShareState]:
    """Return the states of share groups, by group."""
    found = ShareStates()
    for number in state.topics[SHARE_STATES_TOPIC].partitions:
        async for batch in stored_batches(store, state.stream(number)):
            for record in iter_kafka_records(batch):
                found[record.key or b""] = record.value or b""
    return {key.group_id: one.state for key, one in found.by_key.items()}


def test_share_groups_pass_over_no_record_of_a_restored_cluster(tmp_path: Path) -> None:
    """Their states are of a later moment than the partitions: offsets from the end on are of new
    records by then.
    """
    done, tried = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE
    states = {
        "beyond": ShareState(9, 1, 2, 1, (StateBatch(11, 11, done, 1),)),
        "across": ShareState(3, 1, 2, 5, (StateBatch(3, 3, tried, 1), StateBatch(4, 8, done, 1))),
        "behind": ShareState(2, 1, 2, 1, (StateBatch(4, 4, done, 1),)),
        "at the end": ShareState(5, 1, 2, 0),
        "unknown": ShareState(-1, 1, 2),
    }
    write_topic(tmp_path / "store", "t", {0: [b"%d" % number for number in range(5)]})
    topic_id = bytes.fromhex(in_log(tmp_path).topics["t"].topic_id)
    records = [
        TestRecord(
            offset=0,
            key=encode_key(SharePartitionKey(group, topic_id, 0)),
            value=encode_snapshot(ShareSnapshot(epoch=4, state=one, created_ms=1, written_ms=2)),
        )
        for group, one in states.items()
    ]
    write_topic(tmp_path / "store", SHARE_STATES_TOPIC, {0: list(records)})
    back_up(tmp_path / "store", tmp_path / "backup")
    restored = bring_back(tmp_path / "backup", tmp_path / "new")
    assert restored.corrections == 2
    expected = states | {
        "beyond": ShareState(5, 1, 2, 0),
        "across": ShareState(3, 1, 2, 1, (StateBatch(3, 3, tried, 1), StateBatch(4, 4, done, 1))),
    }
    assert asyncio.run(share_states(FileStore(tmp_path / "new"), restored.state)) == expected
