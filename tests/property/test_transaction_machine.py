"""The machine of a transactional id against everything that can come late, twice or from a producer
that is fenced: no producer's word counts after a newer one's, no transaction gets two decisions,
and none is left open for good (failures 23, 24, 26 and 28 of others).
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import (
    EPOCH_MAX,
    NO_PRODUCER_ID,
    PREPARED,
    TV_0,
    TV_2,
    Decision,
    NeedsProducerId,
    Producer,
    Refused,
    Settled,
    Store,
    Transaction,
    TransactionState,
)
from lakehead.broker.coordinator.transaction.record_formats import decode_value, encode_value
from lakehead.broker.coordinator.transaction.state_machine import TransactionMachine, outcome
from tests.support.repetitions import examples

TIMEOUT_MS = 1_000
NOBODY = Producer(NO_PRODUCER_ID, -1)
PARTITIONS = [("t", index) for index in range(3)]


@dataclass
class Client:
    """A producer of the id, as it sees itself."""

    version: int
    me: Producer = NOBODY
    is_fenced: bool = False


numbers = st.integers(0, 1)
rarely = st.integers(0, 5).map(lambda number: number == 5)


class Transactions(RuleBasedStateMachine):
    """Two producers share an id; the coordinator crashes; the log is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.next_id = 100
        first = Transaction(
            transactional_id="x",
            producer_id=99,
            producer_epoch=EPOCH_MAX - 4,  # they run out soon
            timeout_ms=TIMEOUT_MS,
            updated_ms=self.now_ms,
        )
        self.machine = TransactionMachine(first)
        self.durable = encode_value(first)
        self.clients = [Client(version=0), Client(version=2)]
        self.waiting: tuple[Client | None, str] | None = None
        self.markers: set[tuple[str, int]] = set()
        """Partitions with a marker of the transaction that is prepared."""
        self.told: set[Producer] = set()

    # What producers ask.

    @rule(number=numbers, is_continuing=st.booleans(), is_slow=rarely)
    def initialize(self, number: int, is_continuing: bool, is_slow: bool) -> None:
        client = self.clients[number]
        known = client.me if is_continuing and client.me.epoch >= 0 else None
        decision = self.decide(
            lambda fresh: self.machine.init_producer_id(known, TIMEOUT_MS, self.now_ms, fresh)
        )
        if isinstance(decision, Refused) and decision.code is ErrorCode.producer_fenced:
            assert known is not None, "a new producer is never fenced"
        self.perform(decision, client, "initialize", is_slow=is_slow)

    @rule(number=numbers, place=st.sampled_from(PARTITIONS), is_slow=rarely)
    def add(self, number: int, place: tuple[str, int], is_slow: bool) -> None:
        client = self.clients[number]
        before = self.machine.current
        decision = self.machine.add_partitions(client.me, [place], client.version, self.now_ms)
        if isinstance(decision, Store | Settled):
            assert client.me == (before.producer_id, before.producer_epoch)
            assert not client.is_fenced
        self.perform(decision, client, "add", is_slow=is_slow)

    @rule(number=numbers, is_commit=st.booleans(), is_late=rarely, is_slow=rarely)
    def end(self, number: int, is_commit: bool, is_late: bool, is_slow: bool) -> None:
        """`is_late`: a request of the transaction before, held up on its way."""
        client = self.clients[number]
        me = Producer(client.me.producer_id, client.me.epoch - 1) if is_late else client.me
        decision = self.decide(
            lambda fresh: self.machine.end(
                me, client.version, self.now_ms, fresh, is_commit=is_commit
            )
        )
        if is_late:
            assert not isinstance(decision, Store), "a late word decided another transaction"
            return
        if client.is_fenced and isinstance(decision, Settled):
            # It was aborted by timeout, or for a producer that is not told yet that it may go on.
            assert not is_commit
            assert self.machine.current.state is TransactionState.COMPLETE_ABORT
            client.is_fenced = False
        elif client.is_fenced:
            assert isinstance(decision, Refused)
        self.perform(decision, client, "end", is_slow=is_slow)

    @rule()
    def time_passes(self) -> None:
        self.now_ms += TIMEOUT_MS + 1
        decision = self.machine.time_out(self.now_ms)
        if decision is not None:
            fenced = self.machine.current.producer_id, self.machine.current.producer_epoch
            self.perform(decision, None, "time out", is_slow=False)
            for client in self.clients:
                client.is_fenced |= client.me == fenced

    # What becomes of it.

    @precondition(lambda self: self.machine.pending is not None)
    @rule()
    def stored(self) -> None:
        pending = self.machine.pending
        assert pending is not None
        self.durable = encode_value(pending)
        self.machine.stored(is_durable=True)
        current = self.machine.current
        self.markers.clear()
        client, what = self.waiting or (None, "")
        self.waiting = None
        if client is None:
            return
        if what == "initialize" and current.state is TransactionState.EMPTY:
            self.tell(client, Producer(current.producer_id, current.producer_epoch), is_new=True)
        elif what == "end" and client.version >= 2:
            ended = outcome(current, self.now_ms)
            self.tell(client, Producer(ended.producer_id, ended.producer_epoch))

    @precondition(lambda self: self.machine.pending is not None)
    @rule(is_so=rarely)
    def not_stored(self, is_so: bool) -> None:
        if not is_so:
            return
        self.machine.stored(is_durable=False)
        self.waiting = None

    @rule(is_so=rarely)
    def coordinator_moves(self, is_so: bool) -> None:
        """What is in the log is all that the next one knows."""
        if not is_so:
            return
        self.markers.clear()
        self.machine = TransactionMachine(decode_value("x", self.durable))
        self.waiting = None

    @precondition(
        lambda self: self.machine.current.state in PREPARED and self.machine.pending is None
    )
    @rule(places=st.sets(st.sampled_from(PARTITIONS)) | st.just(set(PARTITIONS)), is_slow=rarely)
    def marked(self, places: set[tuple[str, int]], is_slow: bool) -> None:
        wanted = self.machine.current.partitions
        self.markers |= places & wanted
        decision = self.machine.marked(places & wanted, self.now_ms)
        assert (decision is not None) == (self.markers == wanted)
        if decision is not None:
            self.perform(decision, None, "complete", is_slow=is_slow)

    # Always.

    @invariant()
    def what_is_durable_is_what_counts(self) -> None:
        current = decode_value("x", self.durable)
        assert current.state is self.machine.current.state
        assert current.partitions == self.machine.current.partitions
        assert current.producer_epoch == self.machine.current.producer_epoch

    @invariant()
    def epochs_are_in_range(self) -> None:
        for one in (self.machine.current, self.machine.pending):
            assert one is None or 0 <= one.producer_epoch <= EPOCH_MAX
        assert all(producer.epoch < EPOCH_MAX for producer in self.told)

    @invariant()
    def no_two_producers_are_one(self) -> None:
        first, second = (client.me for client in self.clients)
        assert first != second or first == NOBODY

    @invariant()
    def a_way_out_is_left(self) -> None:
        """Whatever happened, a new producer gets the id in a few steps."""
        machine = TransactionMachine(decode_value("x", self.durable))
        for _ in range(4):
            decision = machine.init_producer_id(None, TIMEOUT_MS, self.now_ms, 10**6)
            if isinstance(decision, Store):
                machine.stored(is_durable=True)
            if machine.current.state is TransactionState.EMPTY:
                return
            ending = machine.marked(PARTITIONS, self.now_ms)
            if ending is not None:
                machine.stored(is_durable=True)
        raise AssertionError(f"{machine.current} is stuck")

    # Inside.

    def decide(self, ask: Callable[[int | None], Decision]) -> Decision:
        decision = ask(None)
        if isinstance(decision, NeedsProducerId):
            self.next_id += 1
            decision = ask(self.next_id)
        assert not isinstance(decision, NeedsProducerId)
        return decision

    def perform(
        self, decision: Decision, client: Client | None, what: str, *, is_slow: bool
    ) -> None:
        if isinstance(decision, Store):
            assert decision.transaction is self.machine.pending
            self.waiting = client, what
            self.check_decision(decision.transaction)
            if not is_slow:
                self.stored()
        elif isinstance(decision, Settled) and what == "end" and client and client.version >= 2:
            self.tell(client, Producer(*decision))

    def check_decision(self, stored: Transaction) -> None:
        """Nothing turns a commit that is durable into an abort, or the other way round."""
        before = self.machine.current
        if before.state in PREPARED:
            assert stored == outcome(before, stored.updated_ms)
        if stored.state in PREPARED:
            assert before.state not in PREPARED

    def tell(self, client: Client, producer: Producer, *, is_new: bool = False) -> None:
        if is_new:
            assert producer not in self.told, f"{producer} was given to somebody before"
            for other in self.clients:
                other.is_fenced = other is not client
        client.me = producer
        self.told.add(producer)


def test_a_fenced_producer_of_version_2_does_not_become_its_successor_of_version_0() -> None:
    """The transaction of a producer that keeps its epoch is no bump of the fenced one's epoch."""
    first = Transaction(
        transactional_id="x", producer_id=9, producer_epoch=3, timeout_ms=TIMEOUT_MS, updated_ms=0
    )
    fenced, successor = Producer(9, 3), Producer(9, 4)
    for is_commit in (True, False):
        machine = TransactionMachine(first)
        assert isinstance(machine.init_producer_id(None, TIMEOUT_MS, 0, None), Store)
        machine.stored(is_durable=True)
        assert isinstance(machine.add_partitions(successor, PARTITIONS, TV_0, 0), Store)
        machine.stored(is_durable=True)
        assert isinstance(machine.end(successor, TV_0, 0, None, is_commit=is_commit), Store)
        machine.stored(is_durable=True)
        is_fenced = Refused(ErrorCode.producer_fenced)
        for is_own_commit in (True, False):
            assert machine.end(fenced, TV_2, 0, None, is_commit=is_own_commit) == is_fenced
        assert isinstance(machine.marked(PARTITIONS, 0), Store)
        machine.stored(is_durable=True)
        for is_own_commit in (True, False):
            assert machine.end(fenced, TV_2, 0, None, is_commit=is_own_commit) == is_fenced


Transactions.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=50, deadline=None
)
TestTransactions = Transactions.TestCase
