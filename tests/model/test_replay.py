"""The model's schedules, replayed by the real code: object WAL, recovery and metadata log do in
each of them what the model says.

A random walk through the model says in which order puts arrive and answers come back. The real
engine of incarnation 1 and the real recoveries of 2 and 3 run on a store that holds every put until
the walk says so; after each step both must have come to the same.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import structlog

from lakehead.storage.errors import ObjectExists, StorageError
from lakehead.storage.metadata.entry import entry_number
from lakehead.storage.metadata.records import CreateStream, CreateTopic, RegisterNode
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import WriteAheadLog
from lakehead.storage.wal.object.batching import BatchingSettings
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.object.log import ObjectWal
from lakehead.storage.wal.object.names import WalName, is_seal_size
from lakehead.storage.wal.object.settings import ObjectWalSettings
from lakehead.storage.wal.protocol import WalOwner
from tests.model.takeover import TOMBSTONE, State, Takeover
from tests.simulation.bucket import Bucket
from tests.simulation.ledger import make_batch
from tests.simulation.loop import LoopClock, simulate
from tests.simulation.mutants import take_any_object_for_ones_own
from tests.simulation.oracle import MetadataOracle
from tests.simulation.quiet import silence_logs

WALKS = 150
STEPS_MAX = 40
RARELY_S = 1e8
SETTINGS = StorageSettings(
    upload_age_s=RARELY_S,
    metadata_poll_s=RARELY_S,
    metadata_poll_max_s=RARELY_S,
    garbage_interval_s=RARELY_S,
)
EAGER = re.compile(
    r"\d: (finds|seals|proposes|acknowledges|trims)|(?P<reader>\d): reads the log",
)


class Put:
    """A put on its way."""

    def __init__(self, key: str, body: bytes) -> None:
        self.key = key
        self.body = body
        self.has_arrived = False
        self.outcome: Exception | None = None
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_tombstone(self) -> bool:
        return WalName.parse(self.key) is not None and is_seal_size(len(self.body))


class HeldStore:
    """A process's way to the bucket. Its puts wait, once `is_holding`; all else is done at once."""

    uri = "held:"

    def __init__(self, bucket: Bucket) -> None:
        self.is_holding = False
        self.puts: list[Put] = []
        self._bucket = bucket
        self.get = bucket.get
        self.get_range = bucket.get_range
        self.get_range_into = bucket.get_range_into
        self.get_suffix = bucket.get_suffix
        self.list = bucket.list
        self.delete = bucket.delete
        self.abort_uploads = bucket.abort_uploads
        self.close = bucket.close

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        put = Put(key, b"".join(pieces))
        if not self.is_holding:
            await self.arrive(put)
            self.answer(put)
        else:
            self.puts.append(put)
        await put.answer

    async def arrive(self, put: Put) -> None:
        if not put.has_arrived:
            put.has_arrived = True
            try:
                await self._bucket.create(put.key, [put.body])
            except ObjectExists as error:
                put.outcome = error

    def answer(self, put: Put) -> None:
        if put in self.puts:
            self.puts.remove(put)
        if put.answer.done():
            return
        if put.outcome is None:
            put.answer.set_result(None)
        else:
            put.answer.set_exception(put.outcome)


class Recovery(NamedTuple):
    """An incarnation that recovers: its store, and the task that opens its engine."""

    store: HeldStore
    opening: asyncio.Task[StreamEngine]


class Reality:
    """The real code under a walk's schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = LoopClock(asyncio.get_running_loop())
        self.bucket = Bucket(self.clock.now_ms)
        self.oracle = MetadataOracle(
            self.bucket, Bucket(self.clock.now_ms), fail=_fail, now_s=lambda: 0.0, grace_s=0.0
        )
        self.scope = TaskScope(lambda name, error: _fail(error))
        self.acked: set[int] = set()
        self.recoveries: dict[int, Recovery] = {}
        self.first_entry = 0

    async def begin(self) -> None:
        self.store = HeldStore(self.bucket)
        self.engine = await self._open(self.store)
        topic_id = "0" * 32
        state = await self.engine.metadata.commit(
            [
                CreateTopic(name="t", topic_id=topic_id),
                CreateStream(stream_id=0, topic_id=topic_id, partition=0),
            ]
        )
        self.stream: Stream = (await self.engine.open_streams([0]))[0]
        self.first_entry = state.next_entry + 1
        self.store.is_holding = True

    async def _open(self, store: HeldStore) -> StreamEngine:
        async def open_wal(owner: WalOwner) -> WriteAheadLog:
            batching = BatchingSettings(linger_s=0, linger_max_s=0, budget=0)
            return ObjectWal(
                store,
                owner,
                ObjectWalSettings(
                    batching=batching,
                    hedging=HedgingSettings(share=0),  # hedges have a model of their own
                    put_timeout_s=RARELY_S,
                ),
                are_shared=True,
            )

        return await StreamEngine.open(
            store=store,
            open_wal=open_wal,
            node=NodeIdentity(node_id=0, host="h", port=1),
            clock=self.clock,
            rng=self.rng,
            settings=SETTINGS,
            scope=self.scope,
        )

    def start(self, incarnation: int) -> None:
        store = HeldStore(self.bucket)
        store.is_holding = True
        opening = self.scope.spawn(self._open(store), name="open", is_awaited=True)
        self.recoveries[incarnation] = Recovery(store, opening)

    def write(self, n: int) -> None:
        batch = memoryview(make_batch(n, 1, 64, 0))
        batch[:8] = n.to_bytes(8, "big")

        def done(error: Exception | None) -> None:
            if error is None:
                self.acked.add(n)

        self.stream.append(batch, count=1, max_timestamp=0, on_done=done)

    def upload(self) -> None:
        self.scope.spawn(self.engine.upload_now(), name="upload", is_awaited=True)

    def store_of(self, incarnation: int) -> HeldStore:
        return self.store if incarnation == 1 else self.recoveries[incarnation].store

    def stores(self) -> list[HeldStore]:
        return [self.store, *(one.store for one in self.recoveries.values())]

    def waiting(self, incarnation: int, prefix: str) -> list[Put]:
        return [put for put in self.store_of(incarnation).puts if put.key.startswith(prefix)]

    async def settle(self, state: State) -> None:
        """Let the code go on; answer what the model does not hold back."""
        sent = {name for name, body in state.on_the_way if body == TOMBSTONE}
        while True:
            await asyncio.sleep(0.5)
            ready = [
                (store, put)
                for store in self.stores()
                for put in store.puts
                if (put.is_tombstone and (put.key in self.bucket.objects or _name(put) not in sent))
                or (put.key.startswith("data/") and put.has_arrived)
            ]
            if not ready:
                return
            for store, put in ready:
                await store.arrive(put)
                store.answer(put)

    def compare(self, model: Takeover, state: State) -> None:
        view = model.view(state.log)
        now = self.oracle.state
        entries = self.oracle.entries[self.first_entry :]
        kinds = [
            "register" if isinstance(entry.records[0], RegisterNode) else "commit"
            for entry in entries
        ]
        assert kinds == [entry.kind for entry in state.log]
        assert now.nodes[0].epoch + 1 == view.epoch
        assert self.acked == state.processes[0].acked
        where = [extent.object_key.split("/")[0] for extent in now.stream(0).extents]
        assert where == [name[0] for _, name in view.committed]
        assert now.stream(0).end_offset == len(view.committed)
        if state.processes[0].phase == "stopped":
            assert not self.stream.is_open
        for incarnation, recovery in self.recoveries.items():
            opening = recovery.opening
            # One that finds its successor's work done opens, and fails at once.
            has_opened = opening.done() and opening.exception() is None
            serves = has_opened and opening.result().writable()
            assert serves == (state.processes[incarnation - 1].phase == "serving")


def _name(put: Put) -> tuple[str | int, ...]:
    name = WalName.parse(put.key)
    assert name is not None
    return ("wal", name.epoch + 1, name.number)


def _fail(error: BaseException) -> None:
    if not isinstance(error, StorageError):
        raise error


class Walk:
    """A walk through the model, in which processes do at once what nothing holds them back from."""

    def __init__(self, rng: random.Random, reality: Reality) -> None:
        self.model = Takeover(records=(2, 0, 0))
        self.state = self.model.initial()
        self.rng = rng
        self.reality = reality
        self.taken: list[str] = []
        self._readers: set[int] = set()
        self._is_first_gone = False
        self._arrived: set[str] = set()

    async def step(self) -> bool:
        """Take one step in both; False when there is none left."""
        choices = [one for one in self.model.steps(self.state) if self._is_choice(one[0])]
        starts = [n for n in (2, 3) if n not in self.reality.recoveries and self._may_start(n)]
        if not choices and not starts:
            return False
        pick = self.rng.randrange(len(choices) + len(starts))
        if pick >= len(choices):
            incarnation = starts[pick - len(choices)]
            self.taken.append(f"{incarnation}: starts")
            self._readers.add(incarnation)
            self.reality.start(incarnation)
        else:
            label, after = choices[pick]
            self.taken.append(label)
            self.state = after
            await self._do(label)
        self._go_on()
        await self.reality.settle(self.state)
        self.reality.compare(self.model, self.state)
        return True

    def _may_start(self, incarnation: int) -> bool:
        return self.model.view(self.state.log).epoch == incarnation - 1

    def _is_choice(self, label: str) -> bool:
        first = self.state.processes[0]
        who = int(label[0]) if label[1] == ":" else 0
        if who == 1 and self._is_first_gone:
            return False
        if "uploads" in label:
            return first.uploaded + 1 == len(first.acked)
        if " arrives at " in label:
            return label.split(" at ")[1] not in self._arrived
        words = ("writes", "knows", "is fenced", "becomes entry", "has put", "lost number")
        return any(word in label for word in words)

    def _go_on(self) -> None:
        """Let processes do what nothing holds them back from, in the model."""
        while True:
            for label, after in self.model.steps(self.state):
                found = EAGER.match(label)
                who = int(label[0]) if label[1] == ":" else 0
                if found is None or (who > 1 and who not in self.reality.recoveries):
                    continue
                if found["reader"]:
                    if who not in self._readers:
                        continue
                    self._readers.discard(who)
                self.state = after
                break
            else:
                self._readers.clear()
                return

    async def _do(self, label: str) -> None:
        reality = self.reality
        if "writes" in label:
            reality.write(self.state.processes[0].sent - 1)
        elif "uploads" in label:
            reality.upload()
        elif " arrives at " in label:
            await self._arrive(label)
        elif "becomes entry" in label:
            (put,) = reality.waiting(int(label[0]), "meta/log/")
            await reality.store_of(int(label[0])).arrive(put)
            assert put.outcome is None
            assert entry_number(put.key) == len(reality.oracle.entries) - 1
        else:
            await self._answer(label)

    async def _arrive(self, label: str) -> None:
        body, _, name = label.partition(" arrives at ")
        self._arrived.add(name)
        kind, epoch, number = name.split("/")
        if kind == "data":
            put = self.reality.waiting(1, "data/")[0]
            await self.reality.store.arrive(put)
            return
        key = f"wal/0/{int(epoch) - 1:010d}/{int(number):020d}"
        for store in self.reality.stores():
            for put in store.puts:
                if put.key == key and put.is_tombstone == (body == TOMBSTONE):
                    await store.arrive(put)
                    return
        assert body == TOMBSTONE, f"nobody has sent {label}"
        assert key in self.reality.bucket.objects

    async def _answer(self, label: str) -> None:
        who = int(label[0])
        store = self.reality.store_of(who)
        if "knows" in label or "is fenced" in label:
            number = int(re.findall(r"\d+", label)[1])
            (put,) = self.reality.waiting(who, f"wal/0/{0:010d}/{number:020d}")
        else:
            (put,) = self.reality.waiting(who, "meta/log/")
            if "lost" in label:
                self._readers.add(who)
                if who == 1 and self.model.view(self.state.log).epoch > 1:
                    self._is_first_gone = True
        await store.arrive(put)
        store.answer(put)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


def replay(seed: int) -> Walk:
    async def world() -> Walk:
        reality = Reality(seed)
        await reality.begin()
        walk = Walk(random.Random(seed), reality)
        try:
            for _ in range(STEPS_MAX):
                if not await walk.step():
                    break
        except AssertionError as error:
            steps = "\n  ".join(walk.taken)
            raise AssertionError(f"walk {seed}: after\n  {steps}\n{error}") from error
        return walk

    return simulate(world, seed=seed)


@pytest.mark.parametrize("first", range(0, WALKS, 25))
def test_the_real_code_follows_the_model(first: int) -> None:
    for seed in range(first, first + 25):
        replay(seed)


def test_the_walks_lead_somewhere() -> None:
    walks = [replay(seed) for seed in range(40)]
    labels = {re.sub(r"[\d/.]+", "", label) for walk in walks for label in walk.taken}
    for words in ("is fenced at", "lost number", "tombstone arrives at wal", "arrives at data"):
        assert any(words in label for label in labels), words
    assert max(len(walk.model.view(walk.state.log).committed) for walk in walks) == 2
    assert any(walk.state.processes[2].phase == "serving" for walk in walks)


def test_a_bug_in_the_real_code_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    take_any_object_for_ones_own(monkeypatch)
    with pytest.raises(AssertionError, match="is fenced at"):
        for seed in range(WALKS):
            replay(seed)
