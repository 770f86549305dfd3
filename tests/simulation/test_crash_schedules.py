"""Promise: whatever step the power goes at, every acknowledged record is there, once, in order, at
its offset.

Idempotent producers retry what was not answered, on a hostile store and a device that tears what is
in flight. One seed is one schedule of everything; a failure prints it, and LAKEHEAD_SEED=n runs it.
"""

import asyncio
import itertools
import os
import random

import pytest

from lakehead.broker.partition.partition import Partition, Topic, open_partition
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import check_batch
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.metadata.records import CreateStream, CreateTopic, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import BlockWalSettings
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import format_device, open_slice, volume_image
from tests.checker.history import History, Sent, value_of
from tests.checker.rules import violations
from tests.simulation.crashes import live, pick_crash
from tests.simulation.loop import LoopClock
from tests.support.record_batches import TestRecord, encode_record, seal_batch
from tests.support.repetitions import repetitions
from tests.support.wal_tools import opener

SEEDS = int(os.environ.get("LAKEHEAD_SEEDS", repetitions(250, 75)))
SEED = os.environ.get("LAKEHEAD_SEED")
TOPIC_ID = "0" * 31 + "1"
PARTITIONS = 3
PRODUCERS = 3
DEVICE_SIZE = 512 * 1024
PROFILE = FaultProfile(unavailable=0.05, lost_request=0.03, lost_response=0.05, latency_s_max=0.3)
SETTINGS = StorageSettings(
    upload_size=16 * 1024,
    upload_age_s=0.5,
    stream_object_size=4 * 1024,
    cache_size=48 * 1024,
    block_cache_size=32 * 1024,
    metadata_poll_s=0.5,
    metadata_checkpoint_entries=10,
)


class Producer:
    """An idempotent producer of one partition: batches in flight, each retried until it is
    answered.
    """

    def __init__(self, number: int, rng: random.Random) -> None:
        self.name = f"p{number}"
        self.producer_id = 1000 + number
        self.partition = number % PARTITIONS
        self.next_record = 0
        self.unanswered: list[tuple[int, int]] = []
        """(first record, count) of batches sent and not answered, oldest first."""
        self._rng = rng

    def next_batch(self) -> tuple[int, int]:
        first, count = self.next_record, self._rng.randint(1, 3)
        self.next_record += count
        self.unanswered.append((first, count))
        return first, count

    def encode(self, first: int, count: int) -> memoryview:
        size = 20 + (first * 7919) % 2500
        body = b"".join(
            encode_record(
                TestRecord(
                    offset=n,
                    timestamp=first + n,
                    key=None,
                    value=value_of(Sent(self.name, first + n), size),
                ),
                0,
                first,
            )
            for n in range(count)
        )
        batch = seal_batch(
            body,
            base_offset=0,
            last_offset_delta=count - 1,
            record_count=count,
            base_timestamp=first,
            max_timestamp=first + count - 1,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        return memoryview(bytearray(batch))


class World:
    """What outlives a node: the bucket, the device, the producers and what they were told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.objects: dict[str, bytes] = {}
        self.device = MemoryDevice(DEVICE_SIZE, rng=self.rng, latency_s=(0.0001, 0.01))
        # Its lives have clocks of their own.
        self.history = History(clock=itertools.count().__next__)
        self.producers = [Producer(number, self.rng) for number in range(PRODUCERS)]
        self.log: dict[int, list[tuple[int, bytes]]] = {}
        self.profile = PROFILE

    async def format(self) -> None:
        image = volume_image(
            volume_id=bytes(16), capacity=DEVICE_SIZE, node_id=0, host_id="", cluster_id=""
        )
        await format_device(self.device, image)

    async def open_node(self, scope: TaskScope) -> tuple[StreamEngine, list[Partition]]:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        wal = await open_slice(
            self.device, node_id=0, settings=BlockWalSettings(block_size=8 * 1024)
        )
        engine = await StreamEngine.open(
            store=FaultyStore(MemoryStore(self.objects), rng=self.rng, profile=self.profile),
            open_wal=opener(wal),
            node=NodeIdentity(node_id=0, host="h", port=1),
            clock=clock,
            rng=self.rng,
            settings=SETTINGS,
            scope=scope,
        )
        state = await engine.metadata.commit_with(plan_topic)
        streams = await engine.open_streams(state.topics["t"].partitions)
        topic = Topic("t", TOPIC_ID)
        partitions = [
            await open_partition(topic, index, stream, clock)
            for index, stream in enumerate(streams)
        ]
        return engine, partitions

    async def life(self) -> None:
        """Run a node with its producers and a reader, until it has done its work or fails."""
        crashes: list[str] = []

        def on_crash(name: str, error: BaseException) -> None:
            crashes.append(f"{name}: {error!r}")

        scope = TaskScope(on_crash)
        engine, partitions = await self.open_node(scope)
        async with asyncio.TaskGroup() as group:
            for producer in self.producers:
                group.create_task(self.produce(producer, partitions[producer.partition], engine))
            group.create_task(self.read_now_and_then(partitions))
        if self.rng.random() < 0.5:
            await engine.close()
        assert not crashes, crashes
        await scope.close()

    async def produce(self, producer: Producer, partition: Partition, engine: StreamEngine) -> None:
        """Send what a crash left unanswered again, then new batches, up to five in flight."""
        loop = asyncio.get_running_loop()
        in_flight: list[asyncio.Future[None]] = []
        again = list(producer.unanswered)
        for _ in range(self.rng.randint(5, 30)):
            first, count = again.pop(0) if again else producer.next_batch()
            while not engine.writable():  # noqa: ASYNC110 - back-pressure, as a client feels it
                await asyncio.sleep(0.01)
            for n in range(count):
                self.history.record_sent(Sent(producer.name, first + n), partition.index)
            done: asyncio.Future[None] = loop.create_future()
            self.send(producer, partition, first, count, done)
            in_flight.append(done)
            if len(in_flight) == 5:
                await in_flight.pop(0)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.3)
        for done in in_flight:
            await done

    def send(
        self,
        producer: Producer,
        partition: Partition,
        first: int,
        count: int,
        done: asyncio.Future[None],
    ) -> None:
        """Produce a batch as the broker does: plan, perform, answer when it is durable."""
        batch = producer.encode(first, count)
        header = check_batch(batch, version=9, rules=RecordRules(), now_ms=1 << 60)
        plan = partition.plan(batch, header)

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.answered(producer, partition.index, base, first, count)
                done.set_result(None)
            else:
                done.set_exception(error)

        if plan.known_offset >= 0:
            base = plan.known_offset
            partition.when_confirmed(plan.known_end, on_done)
        else:
            base = partition.perform(plan, on_done)

    def answered(
        self, producer: Producer, partition: int, base: int, first: int, count: int
    ) -> None:
        producer.unanswered.remove((first, count))
        for n in range(count):
            self.history.record_acknowledged(Sent(producer.name, first + n), partition, base + n)

    async def read_now_and_then(self, partitions: list[Partition]) -> None:
        for _ in range(self.rng.randint(0, 6)):
            await asyncio.sleep(self.rng.random())
            partition = self.rng.choice(partitions)
            if partition.high_watermark:
                offset = self.rng.randrange(partition.high_watermark)
                found = [
                    (partition.index, record.offset, record.value or b"")
                    for payload in await partition.stream.fetch(offset, 4096)
                    for record in iter_kafka_records(payload)
                ]
                self.history.record_assign("reader", {partition.index: None})
                self.history.record_poll("reader", found)

    async def read_everything(self) -> None:
        """The last life: a healed store; read every partition from its start to its end."""
        self.profile = FaultProfile()
        scope = TaskScope(lambda name, error: None)
        engine, partitions = await self.open_node(scope)
        for partition in partitions:
            log = self.log.setdefault(partition.index, [])
            offset = 0
            while offset < partition.high_watermark:
                for payload in await partition.stream.fetch(offset, 64 * 1024):
                    for record in iter_kafka_records(payload):
                        assert record.value is not None
                        log.append((record.offset, record.value))
                    offset = read_header(payload).end_offset
        await engine.close()
        await scope.close()


def plan_topic(state: MetadataImage) -> list[Record]:
    if state.topics:
        return []
    streams = [CreateStream(stream_id=n, topic_id=TOPIC_ID, partition=n) for n in range(PARTITIONS)]
    return [CreateTopic(name="t", topic_id=TOPIC_ID), *streams]


def run_world(seed: int) -> World:
    world = World(seed)
    assert live(world.format, seed=seed, crash_at=None)
    for number in range(world.rng.randint(2, 5)):
        live(world.life, seed=seed + number, crash_at=pick_crash(world.rng))
        world.device = world.device.crash()
    assert live(world.read_everything, seed=seed, crash_at=None)
    return world


def seeds() -> list[int]:
    return [int(SEED)] if SEED else list(range(SEEDS))


@pytest.mark.parametrize("first", seeds()[::25])
def test_every_acknowledged_record_survives_any_crash(first: int) -> None:
    for seed in [first] if SEED else range(first, min(first + 25, SEEDS)):
        try:
            world = run_world(seed)
        except Exception as error:
            raise AssertionError(f"LAKEHEAD_SEED={seed}") from error
        broken = violations(world.history, world.log)
        assert not broken, f"LAKEHEAD_SEED={seed}: {broken}"


def test_the_worlds_do_enough_to_break_something() -> None:
    worlds = [run_world(seed) for seed in range(25)]
    assert sum(len(world.history.acknowledged) for world in worlds) > 300
    assert sum(world.history.seen for world in worlds) > 20
    assert sum(any(k.startswith("data/") for k in world.objects) for world in worlds) > 5


def test_one_seed_is_one_schedule() -> None:
    first, second = run_world(3), run_world(3)
    assert first.objects == second.objects
    assert first.log == second.log
