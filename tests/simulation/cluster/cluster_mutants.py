"""Bugs on purpose in what makes nodes a cluster: the simulated clusters must notice each of them.

A mutant replaces one function of the real code for the length of a test. What it breaks is in its
name; `wal` says which clusters it lives in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from lakehead.broker.cluster import controller, replica_manager
from lakehead.broker.cluster.broker_lifecycle import Session
from lakehead.broker.cluster.log_recovery import LogRecovery
from lakehead.broker.cluster.read_replicas import ReadReplicas
from lakehead.broker.cluster.replica_manager import Transition, transition_of
from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroup
from lakehead.broker.coordinator.group.consumer.reconciliation import Reconciliation
from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.share.shard import ShareShard
from lakehead.broker.coordinator.transaction.messages import TV_0, Store
from lakehead.broker.coordinator.transaction.shard import TransactionShard
from lakehead.broker.coordinator.transaction.state_machine import TransactionMachine
from lakehead.broker.partition.partition import Partition
from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.share.in_flight import InFlightBatch, InFlightBatches
from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.record_state import RecordState
from lakehead.broker.share.share_partition import SharePartition
from lakehead.storage.format.transaction_index import TransactionIndex
from lakehead.storage.metadata.state import NodeState
from lakehead.storage.stream.engine import PendingAppends
from lakehead.storage.wal.object.seal import LogSealer
from tests.simulation.cluster.cluster_world import Kind

Patch = pytest.MonkeyPatch


def open_what_is_not_recovered(patch: Patch) -> None:
    patch.setattr(NodeState, "is_recovered", property(lambda self: self.is_fenced))


def hand_over_what_is_still_being_written(patch: Patch) -> None:
    async def mutant(self: Any) -> None:
        return None

    patch.setattr(PendingAppends, "wait", mutant)


def take_over_without_a_tombstone(patch: Patch) -> None:
    async def mutant(self: Any, epoch: int, number: int) -> None:
        return None

    patch.setattr(LogSealer, "_claim", mutant)


def answer_reads_for_ever(patch: Patch) -> None:
    patch.setattr(Session, "is_current", lambda self: self._is_unfenced())


def fence_nobody(patch: Patch) -> None:
    patch.setattr(controller, "unfenced_dead", lambda state, view: [])


def recover_nobody(patch: Patch) -> None:
    patch.setattr(LogRecovery, "_check", lambda self, state: None)


def keep_what_an_earlier_life_had_open(patch: Patch) -> None:
    def mutant(state: Any, stream: Any, node_id: int, *, is_held: bool) -> Transition:
        transition = transition_of(state, stream, node_id, is_held=is_held)
        return Transition.NONE if transition is Transition.RESIGN and not is_held else transition

    patch.setattr(replica_manager, "transition_of", mutant)


def move_without_need(patch: Patch) -> None:
    def mutant(
        leads: Any, loads: Any, *, imbalance: float
    ) -> Generator[None, None, list[tuple[int, int]]]:
        yield
        nodes = sorted(leads)
        moves = [(streams[0], nodes[n - 1]) for n, streams in enumerate(leads.values()) if streams]
        return moves[:1] if len(nodes) > 1 else []

    patch.setattr(controller, "balance", mutant)


def leave_markers_of_a_coordinator_before_unsent(patch: Patch) -> None:
    load, end = TransactionShard.load, TransactionShard._end

    async def mutant(self: Any) -> None:
        patch.setattr(TransactionShard, "_end", lambda self, machine: None)
        try:
            await load(self)
        finally:
            patch.setattr(TransactionShard, "_end", end)

    patch.setattr(TransactionShard, "load", mutant)


def complete_at_the_first_marker(patch: Patch) -> None:
    marked = TransactionMachine.marked

    def mutant(self: Any, partitions: Any, now_ms: int) -> Any:
        if partitions:
            self.unmarked.clear()
        return marked(self, partitions, now_ms)

    patch.setattr(TransactionMachine, "marked", mutant)


def store_a_decision_after_the_response(patch: Patch) -> None:
    perform = TransactionShard.perform

    def mutant(self: Any, machine: Any, decision: Any) -> Any:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, perform, self, machine, decision)
        outcome = loop.create_future()
        outcome.set_result(None)
        return outcome

    patch.setattr(TransactionShard, "perform", mutant)


def time_out_nothing(patch: Patch) -> None:
    patch.setattr(TransactionMachine, "time_out", lambda self, now_ms: None)


def begin_without_verification(patch: Patch) -> None:
    patch.setattr(Partition, "verification", lambda self, header, *, is_adding: None)
    patch.setattr(Partition, "check_verified", lambda self, header, confirmed: None)


def read_what_is_not_stable(patch: Patch) -> None:
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def name_no_aborted_transaction(patch: Patch) -> None:
    patch.setattr(Partition, "aborted_among", lambda self, start_offset, end_offset: ())


def forget_open_transactions_at_an_election(patch: Patch) -> None:
    restore = TransactionIndex.restore
    patch.setattr(
        TransactionIndex, "restore", lambda self, opened, aborted: restore(self, (), aborted)
    )


def append_repeated_batches(patch: Patch) -> None:
    patch.setattr(ProducerStates, "check", lambda self, *batch: None)


def keep_the_epoch_of_a_fenced_producer(patch: Patch) -> None:
    fence = TransactionMachine._fence

    def mutant(self: Any, now_ms: int) -> Any:
        decision = fence(self, now_ms)
        assert isinstance(decision, Store)
        self.pending = replace(
            decision.transaction,
            producer_epoch=self.current.producer_epoch,
            transaction_version=TV_0,
        )
        return Store(self.pending)

    patch.setattr(TransactionMachine, "_fence", mutant)


def commit_the_offsets_of_aborted_transactions(patch: Patch) -> None:
    end = CoordinatorLog.end_transaction
    patch.setattr(
        CoordinatorLog,
        "end_transaction",
        lambda self, producer_id, *, is_commit: end(self, producer_id, is_commit=True),
    )


def acknowledge_before_the_state_is_stored(patch: Patch) -> None:
    stored = LedSharePartition._stored

    def mutant(self: Any, change: Any) -> Any:
        stored(self, change)
        outcome = asyncio.get_running_loop().create_future()
        outcome.set_result(None)
        return outcome

    patch.setattr(LedSharePartition, "_stored", mutant)


def store_no_delivery_counts(patch: Patch) -> None:
    finish = SharePartition._finish

    def mutant(self: Any, change: Any) -> None:
        finish(self, change)
        change.batches = [one._replace(delivery_count=1) for one in change.batches]

    patch.setattr(SharePartition, "_finish", mutant)


def move_the_start_offset_beyond_what_is_available(patch: Patch) -> None:
    drop_done = InFlightBatches.drop_done

    def mutant(self: Any) -> int | None:
        first = next(iter(self), None)
        if first is not None and first.is_available and first.delivery_count == 1:
            first.state = RecordState.ARCHIVED
        return drop_done(self)

    patch.setattr(InFlightBatches, "drop_done", mutant)


def store_states_that_have_ended(patch: Patch) -> None:
    write = ShareShard.write
    patch.setattr(
        ShareShard, "write", lambda self, key, new: write(self, key, new._replace(state_epoch=-1))
    )


def give_records_of_others_away(patch: Patch) -> None:
    is_held = frozenset({RecordState.AVAILABLE, RecordState.ACQUIRED})
    patch.setattr(InFlightBatch, "is_available", property(lambda self: self.state in is_held))


def give_partitions_that_others_have(patch: Patch) -> None:
    towards_target = Reconciliation._towards_target
    patch.setattr(
        Reconciliation,
        "_towards_target",
        lambda self, now: towards_target(replace(self, is_free=lambda topic_id, index: True), now),
    )


def take_commits_of_members_that_are_fenced(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "refuse_commit", lambda self, *member, **options: None)


def take_a_read_replica_beyond_its_leader(patch: Patch) -> None:
    add = ReadReplicas._add

    def mutant(self: Any, replica: Any, records: Any) -> int:
        size = add(self, replica, records)
        if size:
            replica.stream.next_offset += 1
            replica.stream.confirm(replica.stream.confirmed_offset + 1)
        return size

    patch.setattr(ReadReplicas, "_add", mutant)


class Mutant(NamedTuple):
    """A bug and the clusters it is let loose in, from `first_seed` on, with one kind of clients."""

    apply: Callable[[Patch], None]
    wal: str
    first_seed: int = 0
    kind: Kind = Kind.TRANSACTIONS


MUTANTS = [
    Mutant(open_what_is_not_recovered, "object"),
    Mutant(hand_over_what_is_still_being_written, "object"),
    Mutant(take_over_without_a_tombstone, "object"),
    Mutant(answer_reads_for_ever, "object"),
    Mutant(fence_nobody, "object", first_seed=5),
    Mutant(recover_nobody, "object", first_seed=6),
    Mutant(keep_what_an_earlier_life_had_open, "memory"),
    Mutant(move_without_need, "object"),
    Mutant(leave_markers_of_a_coordinator_before_unsent, "object", first_seed=8),
    Mutant(complete_at_the_first_marker, "object", first_seed=50),
    Mutant(store_a_decision_after_the_response, "object", first_seed=3),
    Mutant(time_out_nothing, "object"),
    Mutant(begin_without_verification, "object"),
    Mutant(read_what_is_not_stable, "object"),
    Mutant(name_no_aborted_transaction, "object"),
    Mutant(forget_open_transactions_at_an_election, "object", first_seed=2),
    Mutant(append_repeated_batches, "object"),
    Mutant(commit_the_offsets_of_aborted_transactions, "object"),
    Mutant(keep_the_epoch_of_a_fenced_producer, "object", first_seed=25),
    Mutant(acknowledge_before_the_state_is_stored, "object", kind=Kind.SHARE_GROUPS),
    Mutant(store_no_delivery_counts, "object", kind=Kind.SHARE_GROUPS),
    Mutant(move_the_start_offset_beyond_what_is_available, "object", kind=Kind.SHARE_GROUPS),
    Mutant(store_states_that_have_ended, "object", first_seed=12, kind=Kind.SHARE_GROUPS),
    Mutant(give_records_of_others_away, "object", kind=Kind.SHARE_GROUPS),
    Mutant(give_partitions_that_others_have, "object", kind=Kind.CONSUMER_GROUPS),
    Mutant(
        take_commits_of_members_that_are_fenced,
        "object",
        first_seed=136,
        kind=Kind.CONSUMER_GROUPS,
    ),
    Mutant(take_a_read_replica_beyond_its_leader, "object", kind=Kind.ZONES),
]
