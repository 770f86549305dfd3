"""What a broker stores is what docs/formats says: a reader written from those pages alone finds
every record that was acknowledged, and nothing else.
"""

import ast
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.wal.object.names import Seal
from tests.support import metadata_by_the_book, reader_by_the_book
from tests.support.broker_process import BrokerProcess
from tests.support.metadata_by_the_book import Cluster, read_checkpoint, read_cluster, read_log
from tests.support.reader_by_the_book import (
    Batch,
    Wrong,
    read_batch,
    read_block_wal,
    read_object,
    read_tombstone,
)
from tests.support.waiting import wait_until

PARTITIONS = 2
COUNT = 400
QUICK = ("--wal.size", "64m", "--upload.size", "1m", "--upload.age.ms", "200")
SLOW = ("--wal.size", "64m", "--upload.age.ms", "600000")


@pytest.mark.parametrize("module", [reader_by_the_book, metadata_by_the_book])
def test_the_reader_uses_nothing_of_the_project(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    found = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    known = {"json", "struct", "copy", "collections", "dataclasses", "pathlib", "typing"}
    assert found <= known | {"crc32c", "msgspec", "pyarrow"}


def produce(broker: BrokerProcess, topic: str, first: int) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.num.messages": 7}
    )
    for number in range(first, first + COUNT):
        producer.produce(topic, f"{number}", f"k{number}", partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def create(broker: BrokerProcess, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [NewTopic(topic, num_partitions=PARTITIONS) for topic in topics]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def cluster_of(store: Path) -> Cluster:
    return read_cluster(store / "meta")


def expected(partition: int, count: int) -> list[tuple[int, bytes, bytes]]:
    """Offset, key and value of a partition's records."""
    numbers = [number for number in range(count) if number % PARTITIONS == partition]
    return [(i, f"k{n}".encode(), f"{n}".encode()) for i, n in enumerate(numbers)]


def records(batches: list[Batch]) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    for batch in batches:
        inside = read_batch(batch.payload)
        assert [record.offset for record in inside] == list(
            range(batch.offset, batch.offset + batch.offsets)
        )
        found += [(record.offset, record.key, record.value) for record in inside]
    return found


def test_a_stranger_finds_every_record_in_objects_and_in_the_block_wal(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, QUICK)
    broker.start()
    create(broker, "orders", "gone")
    produce(broker, "gone", 0)
    produce(broker, "orders", 0)
    store = tmp_path / "data" / "store"

    def all_uploaded() -> bool:
        cluster = cluster_of(store)
        ends = (cluster.extents("orders", n)[-1:] for n in range(PARTITIONS))
        return all(end and end[0][1] == COUNT // PARTITIONS for end in ends)

    assert wait_until(all_uploaded, 30)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["gone"])["gone"].result(30)
    broker.kill()

    slow = BrokerProcess(tmp_path, SLOW)
    slow.start()
    produce(slow, "orders", COUNT)
    slow.kill()

    cluster = cluster_of(store)
    assert set(cluster.topics) >= {"orders"}
    assert "gone" not in cluster.topics
    assert cluster.nodes[0].epoch == 1
    (part,) = read_block_wal((tmp_path / "data" / "wal").read_bytes())
    assert (part.node, part.cluster, part.is_clean) == (0, cluster.cluster_id, False)
    for partition in range(PARTITIONS):
        stream = cluster.partitions[cluster.topics["orders"]][partition]
        batches: list[Batch] = []
        for start, end, key in cluster.extents("orders", partition):
            extension, held = read_object((store / key).read_bytes())
            mine = [batch for batch in held if batch.stream == stream]
            assert (mine[0].offset, mine[-1].offset + mine[-1].offsets) == (start, end)
            (info,) = [one for one in extension["streams"] if one["stream_id"] == stream]
            assert (info["topic"], info["partition"]) == ("orders", partition)
            assert (extension["kind"], extension["node_id"]) == (cluster.objects[key], 0)
            batches += mine
        end = batches[-1].offset + batches[-1].offsets
        batches += [b for b in part.batches if b.stream == stream and b.offset >= end]
        assert records(batches) == expected(partition, 2 * COUNT)

    slow.start()
    slow.stop()
    (part,) = read_block_wal((tmp_path / "data" / "wal").read_bytes())
    assert part.is_clean
    uploaded = cluster_of(store)
    assert not uploaded.streams[0].is_open
    for partition in range(PARTITIONS):
        assert uploaded.extents("orders", partition)[-1][1] == COUNT


def test_a_stranger_reads_the_same_cluster_from_a_checkpoint_and_from_the_entries(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path, (*QUICK, "--metadata.checkpoint.entries", "10"))
    broker.start()
    meta = tmp_path / "data" / "store" / "meta"
    seen: dict[str, bytes] = {}

    def has_checkpoint() -> bool:
        seen.update((path.name, path.read_bytes()) for path in (meta / "log").glob("*.json"))
        return any((meta / "checkpoint").glob("*.parquet"))

    create(broker, "orders", "gone")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["gone"])["gone"].result(30)
    for first in range(0, 20 * COUNT, COUNT):
        produce(broker, "orders", first)
        if wait_until(has_checkpoint, 0.3):
            break
    assert wait_until(has_checkpoint, 20)
    broker.stop()
    has_checkpoint()
    checkpoint = read_checkpoint(min((meta / "checkpoint").glob("*.parquet")))
    entries = [seen[f"{number:020d}.json"] for number in range(checkpoint.entries)]
    assert checkpoint == read_log(Cluster(), entries)
    assert read_cluster(meta).entries > checkpoint.entries


def test_a_stranger_notices_every_flipped_byte_of_an_object() -> None:
    writer = ObjectWriter(
        kind="wal", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    for stream_id in (1, 5):
        info = StreamInfo(stream_id=stream_id, topic="t", partition=stream_id, epoch=4)
        writer.begin_stream(info)
        writer.add(4, 10, 3, b"payload" * 9, 1_000)
        writer.add(4, 13, 1, b"x", 2_000)
    body = b"".join(bytes(piece) for piece in writer.finish().pieces)
    extension, batches = read_object(body)
    assert [info["epoch"] for info in extension["streams"]] == [4, 4]
    assert [(b.stream, b.offset, b.offsets) for b in batches] == [
        (1, 10, 3), (1, 13, 1), (5, 10, 3), (5, 13, 1),
    ]  # fmt: skip
    footer_padding = {len(body) - 48 + at for at in (13, 14, 15, 36, 37, 38, 39)}
    for at in sorted(set(range(len(body))) - footer_padding):
        flipped = bytearray(body)
        flipped[at] ^= 0x10
        with pytest.raises((Wrong, ValueError, IndexError)):
            read_object(bytes(flipped))


def test_a_stranger_reads_a_tombstone() -> None:
    body = Seal(sealer_id=7, incarnation="0123456789abcdef", created_ms=12).encode()
    assert read_tombstone(body) == (7, 12, "0123456789abcdef")
