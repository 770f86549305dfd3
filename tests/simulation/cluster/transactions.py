"""Clients with transactions in a simulated cluster, and the judgement of what they saw.

Producers write to several partitions in a transaction, which they commit or abort; some crash in
it, some are slow until it times out, some are fenced by a second producer of their id, and some of
their batches arrive after the end of the transaction. They read committed records in their
transactions, as other readers do. When nothing fails any more, no transaction stays open, and the
rules of the history checker hold (`tests.checker.transaction_rules`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import IDLE
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.checker.transaction_history import Fate, Transaction, TransactionHistory
from tests.checker.transaction_rules import CommittedLog, copy_violations, transaction_violations
from tests.simulation.cluster.client_wire import ClientWire
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.committed_reader import CommittedReader
from tests.simulation.cluster.topics import COPIES, TRANSFERS
from tests.simulation.cluster.transactional_producer import (
    GROUP,
    Abortable,
    Fenced,
    GaveUp,
    TransactionalProducer,
    find_coordinator,
)
from tests.simulation.cluster.zone_readers import ZONES
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

STABLE_S = 60.0
"""Once nothing fails any more, no transaction is open after so many seconds."""
VIOLATIONS_SHOWN = 5
_OFFSET_FETCH = 9
Run: TypeAlias = Callable[[str, str], Coroutine[Any, Any, None]]
"""Runs one client: its name, and its transactional id."""


class Transactions(Clients):
    """All of these clients of one world."""

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, random.Random(seed))
        self.history = TransactionHistory(clock=world.loop.time)
        self._numbers = itertools.count()
        self._partitions = self.rng.choice([2, 3])
        self._pace_s = self.rng.choice([1.0, 3.0])
        self._producers = self.rng.choice([1, 2, 3])
        self._has_copier = self.rng.random() < 0.5

    def start(self) -> None:
        """Begin."""
        for number in range(self._producers):
            identity = f"p{number}"
            self.begin(self._keep(identity, TRANSFERS, self._produce), f"producers {number}")
        if self._has_copier:
            self.begin(self._keep("copier", COPIES, self._copy), "copiers")
        self.begin(self._read(), "reader")

    # ------------------------------------------------------------- clients

    async def _keep(self, identity: str, topic: str, run: Run) -> None:
        """Run clients of one transactional id, one after the other and sometimes two at once."""
        rng = self.rng
        await self.ready(topic, self._partitions)
        for number in itertools.count():
            name = f"{identity}.{number}"
            producing = self.begin(run(name, identity), name)
            await asyncio.wait([producing], timeout=rng.uniform(5.0, 40.0))
            if self.world.is_quiet:
                return
            if not producing.done() and rng.random() < 0.5:
                self.note(name, "crashes")
                self.ends["crashed producer"] += 1
                producing.cancel()
                if rng.random() < 0.2:
                    return  # it never comes back, and its transaction has to time out
            await asyncio.sleep(rng.choice([0.1, 1.0, 5.0]) * rng.random())

    def _producer(self, wire: ClientWire, identity: str, topic: str) -> TransactionalProducer:
        rng = self.rng
        is_new = rng.random() < 0.6
        timeout_ms = rng.choice([2_000, 8_000, 20_000])
        self.note(identity, f"has a producer of version {2 if is_new else 0}")
        return TransactionalProducer(
            wire, rng, identity, topic, is_new=is_new, timeout_ms=timeout_ms
        )

    async def _produce(self, name: str, identity: str) -> None:
        rng, wire = self.rng, self.wire()
        producer = self._producer(wire, identity, TRANSFERS)
        reader = CommittedReader(wire, TRANSFERS, dict.fromkeys(range(self._partitions), 0))
        try:
            await producer.initialize()
            self.note(name, "has its producer id")
            while not self.world.is_quiet:
                await asyncio.sleep(rng.expovariate(1 / self._pace_s))
                await self._transaction(name, producer, reader)
            if rng.random() < 0.7:
                await self._leave_open(name, producer)
        except (Fenced, GaveUp, Abortable) as error:
            self.ends[type(error).__name__] += 1
            self.note(name, f"ends: {error!r}")
        finally:
            wire.close()

    async def _transaction(
        self, name: str, producer: TransactionalProducer, reader: CommittedReader
    ) -> None:
        rng = self.rng
        await producer.begin()
        transaction = self.history.begin(f"{name}.{next(self._numbers)}")
        chosen = rng.sample(range(self._partitions), rng.randint(1, self._partitions))
        try:
            if rng.random() < 0.5:
                fetched = await reader.fetch(rng.choice(chosen))
                records = [] if fetched is None else fetched.records
                transaction.reads += self.history.record_seen(name, records)
            await producer.add(chosen)
            await self._write(producer, transaction, chosen)
            if rng.random() < 0.1:
                await asyncio.sleep(rng.uniform(1.0, 12.0))
            commits = rng.random() < 0.75
        except Abortable as error:
            self.note(transaction.name, f"must be aborted: {error}")
            commits = False
        await self._end(producer, transaction, commits=commits)

    async def _leave_open(self, name: str, producer: TransactionalProducer) -> None:
        """Write in a transaction and leave it so, for its coordinator to time it out."""
        await producer.begin()
        transaction = self.history.begin(f"{name}.{next(self._numbers)}")
        chosen = list(range(self._partitions))
        await producer.add(chosen)
        await self._write(producer, transaction, chosen)
        self.ends["left open"] += 1
        self.note(transaction.name, "is left open")

    async def _write(
        self, producer: TransactionalProducer, transaction: Transaction, chosen: list[int]
    ) -> None:
        numbers = itertools.count()

        async def write(partition: int) -> None:
            for _ in range(self.rng.choice([1, 1, 2])):
                count = self.rng.choice([1, 2])
                values = [f"{transaction.name}:{next(numbers)}" for _ in range(count)]
                transaction.writes.update(dict.fromkeys(values, partition))
                await producer.produce(partition, values)

        errors = await asyncio.gather(*map(write, chosen), return_exceptions=True)
        for kind in (Violation, Fenced, Abortable, BaseException):
            for error in errors:
                if isinstance(error, kind):
                    raise error

    async def _end(
        self, producer: TransactionalProducer, transaction: Transaction, *, commits: bool
    ) -> None:
        if commits:
            self.history.request_commit(transaction)
        else:
            transaction.fate = Fate.ABORTED  # its commit is never requested
        try:
            await producer.end(is_commit=commits)
        except (Fenced, Abortable):
            if commits and not producer.is_unsure:
                transaction.fate = Fate.ABORTED
            self.ends["not ended"] += 1
            raise
        transaction.fate = Fate.COMMITTED if commits else Fate.ABORTED
        self.ends[transaction.fate] += 1
        self.note(transaction.name, f"is {transaction.fate}")

    async def _copy(self, name: str, identity: str) -> None:
        rng, wire = self.rng, self.wire()
        producer = self._producer(wire, identity, COPIES)
        try:
            await producer.initialize()
            reader = CommittedReader(wire, TRANSFERS, await self._committed(wire))
            while not self.world.is_quiet:
                await asyncio.sleep(rng.expovariate(1 / self._pace_s))
                partition = rng.randrange(self._partitions)
                before = reader.position[partition]
                fetched = await reader.fetch(partition)
                if fetched is not None and reader.position[partition] > before:
                    values = [value for _, _, value in fetched.records]
                    offset = reader.position[partition]
                    if not await self._copy_batch(producer, partition, values, offset):
                        reader.position.update(await self._committed(wire))
        except (Fenced, GaveUp, Abortable) as error:
            self.ends[f"copier: {type(error).__name__}"] += 1
            self.note(name, f"ends: {error!r}")
        finally:
            wire.close()

    async def _copy_batch(
        self, producer: TransactionalProducer, partition: int, values: list[str], offset: int
    ) -> bool:
        """Copy values in a transaction, and the position behind them; return whether it was
        committed.
        """
        await producer.begin()
        try:
            if values:
                await producer.add([partition])
                await producer.produce(partition, values)
            await producer.add_offsets(COPIES)
            await producer.commit_offset(COPIES, TRANSFERS, partition, offset)
            commits = self.rng.random() < 7 / 8
        except Abortable as error:
            self.note("copier", f"must abort: {error}")
            commits = False
        await producer.end(is_commit=commits)
        self.ends[f"copy {'committed' if commits else 'aborted'}"] += 1
        self.note("copier", f"{'committed' if commits else 'aborted'} {partition} to {offset}")
        return commits

    async def _committed(self, wire: ClientWire) -> dict[int, int]:
        """Return the positions that the copier's group has committed. Raises GaveUp."""
        module = schema(_OFFSET_FETCH, 7).request_module
        indexes = list(range(self._partitions))
        topic = entity(module, "OffsetFetchRequestTopic", name=TRANSFERS, partition_indexes=indexes)
        until = asyncio.get_running_loop().time() + STABLE_S
        while asyncio.get_running_loop().time() < until:
            where = await find_coordinator(wire, self.rng, COPIES, GROUP)
            if where is not None:
                with suppress(OSError, TimeoutError):
                    response = await wire.send(
                        *(where, _OFFSET_FETCH, 7, "OffsetFetchRequest"),
                        group_id=COPIES,
                        topics=[topic],
                        require_stable=True,
                    )
                    found = [one for topic in response.topics for one in topic.partitions]
                    codes = {response.error_code, *(one.error_code for one in found)}
                    if codes == {ErrorCode.none}:
                        return {one.partition_index: max(one.committed_offset, 0) for one in found}
            await asyncio.sleep(0.5)
        raise GaveUp("the positions of the copier are not stable")

    async def _read(self) -> None:
        await self.ready(TRANSFERS, self._partitions)
        wire = self.wire()
        rack = "" if self.world.zones is None else self.rng.choice(ZONES)
        reader = CommittedReader(wire, TRANSFERS, dict.fromkeys(range(self._partitions), 0), rack)
        while not self.world.is_quiet:
            await asyncio.sleep(self.rng.expovariate(1.0))
            partition = self.rng.randrange(self._partitions)
            is_of_replica = reader.reads_from_replica(partition)
            fetched = await reader.fetch(partition)
            if fetched is not None:
                self.history.record_seen("reader", fetched.records)
                self.ends["read from a replica"] += is_of_replica and bool(fetched.records)
        wire.close()

    # ------------------------------------------------------------- judgement

    async def judge(self) -> None:
        """Read everything that is committed, and compare. Raises Violation."""
        if TRANSFERS not in self.world.oracle.state.topics:
            return
        found = asyncio.get_running_loop().create_future()

        async def judge() -> None:
            wire = self.wire()
            log = {p: await self._read_all(wire, TRANSFERS, p) for p in range(self._partitions)}
            violations = transaction_violations(self.history, log)
            if COPIES in self.world.oracle.state.topics:
                violations += await self._judge_copies(wire, log)
            wire.close()
            found.set_result(violations)

        self.begin(judge(), "judge of transactions")
        await asyncio.wait([found], timeout=8 * STABLE_S)
        if not found.done():
            raise Violation("the transactions are not read to their end")
        if violations := found.result():
            raise Violation("; ".join(violations[:VIOLATIONS_SHOWN]))
        self._expect_idle()

    async def _judge_copies(self, wire: ClientWire, log: CommittedLog) -> list[str]:
        positions = await self._committed(wire)
        copies = {p: await self._read_all(wire, COPIES, p) for p in range(self._partitions)}
        source = {p: [value for _, value in records] for p, records in log.items()}
        counts = {
            p: sum(offset < positions[p] for offset, _ in records) for p, records in log.items()
        }
        return copy_violations(source, copies, counts)

    async def _read_all(
        self, wire: ClientWire, topic: str, partition: int
    ) -> list[tuple[int, str]]:
        reader = CommittedReader(wire, topic, {partition: 0})
        records: list[tuple[int, str]] = []
        until = asyncio.get_running_loop().time() + STABLE_S
        ends = "no leader responds"
        while asyncio.get_running_loop().time() < until:
            fetched = await reader.fetch(partition)
            if fetched is None:
                await asyncio.sleep(0.5)
                continue
            records += [(offset, value) for _, offset, value in fetched.records]
            if reader.position[partition] == fetched.high_watermark:
                return records
            ends = (
                f"the last stable offset hangs at {fetched.last_stable_offset}, the high watermark "
                f"is {fetched.high_watermark}"
            )
        raise Violation(f"{topic}-{partition}: {ends}")

    def _expect_idle(self) -> None:
        """Every transaction has ended at its coordinator, too."""
        for machine in self.world.machines:
            member = machine.newest
            if member.life.is_dead or member.broker is None:
                continue
            for shard in member.broker.coordinator.shards.loaded():
                for name, known in shard.machines.items():
                    if known.current.state not in IDLE:
                        raise Violation(f"transaction {name} stays {known.current.state.label}")
