"""The rules of transactions: readers of committed records see what was committed, whole, once, and
not before; a copy by transactions has each record of its source once.

A breach is a line that begins with its kind:

- duplicate: a value is there twice; order: a transaction's values are not in its order;
- torn: some values of a transaction are there and others are not; lost: a transaction was
  committed, and nothing of it is there;
- aborted: a value is there, or was read, of a transaction that was aborted, whose commit was never
  requested, or that no client began;
- precommitted: a value was read before the commit of its transaction was requested;
- unsaid: a reader got a value at an offset where the log does not have it;
- skip, backwards: a reader passed a committed value over, or went back;
- cycle: transactions read from each other in a circle (G1c, of reads);
- copy: a copy does not have the records of its source that its group has committed, in their order
  and once; undelivered: a group has committed a position beyond a record that no member got.

Two anomalies are none of Kafka, whose transactions are not isolated from each other: two of them
may write into two partitions in opposite orders (G0), and one may read a value of another, and not
yet a second one elsewhere (G-single). `fractured` counts the latter.
"""

import graphlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.checker.transaction_history import Fate, Transaction, TransactionHistory, writer_of

CommittedLog = Mapping[int, Sequence[tuple[int, str]]]
"""By partition: (offset, value) of every record, as a reader of committed records that began at 0
saw them at the end.
"""


def transaction_violations(history: TransactionHistory, log: CommittedLog) -> list[str]:
    """Return every breach in a history and the log at its end."""
    return [
        *_values(history, log),
        *_order(history, log),
        *_readings(history, log),
        *_early(history),
        *_cycles(history),
    ]


def copy_violations(
    source: Mapping[int, Sequence[str]], copy: CommittedLog, committed: Mapping[int, int]
) -> list[str]:
    """Return every breach in a copy of a source's values, by partition, whose group has committed
    these positions. The source has no transactions: an offset is the number of a record.
    """
    found = []
    for partition, position in committed.items():
        wanted = list(source.get(partition, ()))[:position]
        got = [value for _, value in copy.get(partition, ())]
        if got == wanted:
            continue
        twice = [value for value, count in Counter(got).items() if count > 1]
        missing, more = set(wanted) - set(got), set(got) - set(wanted)
        fault = (
            (twice and f"{len(twice)} records are there twice, like {twice[0]!r}")
            or (missing and f"{len(missing)} records are missing, like {min(missing)!r}")
            or (more and f"{len(more)} records are beyond the position, like {min(more)!r}")
            or "the order is another one"
        )
        found.append(f"copy: partition {partition} at {position}: {fault}")
    return found


def delivery_violations(
    delivered: Mapping[int, set[int]], committed: Mapping[int, int]
) -> Iterator[str]:
    """Yield the partitions in which a group with automatic commits has passed over records."""
    for partition, position in committed.items():
        missing = set(range(position)) - delivered.get(partition, set())
        if missing:
            yield (
                f"undelivered: partition {partition} is committed at {position}, and no member got "
                f"{len(missing)} records, like {min(missing)}"
            )


def fractured(history: TransactionHistory, log: CommittedLog) -> int:
    """Return how many transactions read a value of another one, and had not got to a second value
    of it in another partition that they read as well: G-single, which Kafka allows.
    """
    places = _places(log)
    count = 0
    for transaction in _committed(history):
        reached = {seen.partition: seen.offset for seen in transaction.reads}
        for name in {seen.writer for seen in transaction.reads}:
            other = history.transactions.get(name)
            written = [] if other is None else [places.get(value) for value in other.writes]
            if any(
                place is not None and place[1] > reached.get(place[0], place[1])
                for place in written
            ):
                count += 1
                break
    return count


def _committed(history: TransactionHistory) -> Iterator[Transaction]:
    return (one for one in history.transactions.values() if one.fate is Fate.COMMITTED)


def _places(log: CommittedLog) -> dict[str, tuple[int, int]]:
    return {value: (p, offset) for p, records in log.items() for offset, value in records}


def _values(history: TransactionHistory, log: CommittedLog) -> Iterator[str]:
    counts = Counter(value for records in log.values() for _, value in records)
    yield from (f"duplicate: {value} is there {n} times" for value, n in counts.items() if n > 1)
    found: dict[str, set[str]] = defaultdict(set)
    for value in counts:
        found[writer_of(value)].add(value)
    for name, values in sorted(found.items()):
        transaction = history.transactions.get(name)
        fate = _forbidden(transaction)
        if fate:
            yield f"aborted: {name} {fate}, and {min(values)} is there"
        elif transaction is not None and values != set(transaction.writes):
            yield f"torn: {len(values)} of {len(transaction.writes)} values of {name}"
    yield from (
        f"lost: {one.name} was committed"
        for one in _committed(history)
        if one.writes and one.name not in found
    )


def reason_unseen(history: TransactionHistory, value: str) -> str:
    """Return why a value must not be seen by readers of committed records; nothing if it may."""
    return _forbidden(history.transactions.get(writer_of(value)))


def _forbidden(transaction: Transaction | None) -> str:
    """Return why nothing of a transaction may be seen; nothing if it may."""
    if transaction is None:
        return "was never begun"
    if transaction.may_be_seen:
        return ""
    return "was aborted" if transaction.fate is Fate.ABORTED else "was not to be committed"


def _order(history: TransactionHistory, log: CommittedLog) -> Iterator[str]:
    for partition, records in log.items():
        last: dict[str, int] = {}
        for _, value in records:
            transaction = history.transactions.get(writer_of(value))
            if transaction is None or value not in transaction.writes:
                continue
            number = list(transaction.writes).index(value)
            if number < last.get(transaction.name, -1):
                yield f"order: partition {partition}: {value} is behind a later one"
            last[transaction.name] = number


def _readings(history: TransactionHistory, log: CommittedLog) -> Iterator[str]:
    places = _places(log)
    offsets = {partition: [offset for offset, _ in records] for partition, records in log.items()}
    for reader, reading in history.readings.items():
        position: dict[int, int] = {}
        for seen in reading:
            partition, offset = seen.partition, seen.offset
            if fate := reason_unseen(history, seen.value):
                yield f"aborted: {reader} read {seen.value}, whose transaction {fate}"
            elif places.get(seen.value) != (partition, offset):
                yield f"unsaid: {reader} read {seen.value} at {(partition, offset)}"
            expected = position.get(partition, offset)
            if offset < expected:
                yield f"backwards: {reader}, partition {partition}: {offset} after {expected - 1}"
            passed = [o for o in offsets.get(partition, ()) if expected <= o < offset]
            if passed:
                yield f"skip: {reader}, partition {partition}: {offset} given, {passed[:3]} passed"
            position[partition] = offset + 1


def _early(history: TransactionHistory) -> Iterator[str]:
    for reader, reading in history.readings.items():
        for seen in reading:
            transaction = history.transactions.get(seen.writer)
            if transaction is not None and seen.at < transaction.commit_begun < float("inf"):
                early_s = transaction.commit_begun - seen.at
                yield f"precommitted: {reader} read {seen.value} {early_s:.3f} s before its commit"


def _cycles(history: TransactionHistory) -> Iterator[str]:
    """A transaction comes after those that it read from."""
    committed = {one.name for one in _committed(history)}
    before = {
        one.name: {seen.writer for seen in one.reads} & committed - {one.name}
        for one in _committed(history)
    }
    yield from (
        f"cycle: {one.name} read its own value {seen.value}"
        for one in _committed(history)
        for seen in one.reads
        if seen.writer == one.name
    )
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        names: Sequence[str] = error.args[1]
        yield "cycle: " + ", ".join(f"{b} read from {a}" for a, b in itertools.pairwise(names))
