"""The rules of transactions name each breach that is put in, and nothing else."""

from collections.abc import Callable

import pytest

from tests.checker.transaction_history import Fate, Seen, Transaction, TransactionHistory
from tests.checker.transaction_rules import (
    copy_violations,
    delivery_violations,
    fractured,
    transaction_violations,
)

Log = dict[int, list[tuple[int, str]]]
Damage = Callable[[TransactionHistory, Log], object]
FATES = {
    "a": Fate.COMMITTED,
    "b": Fate.COMMITTED,
    "c": Fate.ABORTED,
    "d": Fate.OPEN,
    "e": Fate.OPEN,
}
"""Of `d` the commit was requested and never confirmed, of `e` it was not requested."""


def good() -> tuple[TransactionHistory, Log]:
    """Return a history of five transactions of two values each, and its log."""
    history = TransactionHistory(clock=lambda: 0.0)
    for number, (name, fate) in enumerate(FATES.items()):
        commits = name in "abd"
        history.transactions[name] = Transaction(
            name,
            writes={f"{name}:0": 0, f"{name}:1": 1},
            commit_begun=10.0 * number if commits else float("inf"),
            fate=fate,
        )
    log: Log = {
        0: [(0, "a:0"), (3, "b:0"), (7, "d:0")],
        1: [(1, "a:1"), (2, "b:1"), (9, "d:1")],
    }
    history.transactions["b"].reads = [Seen(0, 0, "a:0", 5.0), Seen(1, 1, "a:1", 5.0)]
    history.readings["r"] = [
        Seen(0, 0, "a:0", 5.0),
        Seen(1, 1, "a:1", 5.0),
        Seen(0, 3, "b:0", 15.0),
        Seen(1, 2, "b:1", 16.0),
    ]
    return history, log


def without(log: Log, *values: str) -> None:
    for partition, records in log.items():
        log[partition] = [record for record in records if record[1] not in values]


def test_a_good_history_has_no_breach() -> None:
    history, log = good()
    assert transaction_violations(history, log) == []
    without(log, "d:0", "d:1")
    assert transaction_violations(history, log) == [], "of an unclear one all or nothing"


DAMAGES: list[tuple[str, Damage]] = [
    ("duplicate", lambda _, log: log[0].append((11, "a:0"))),
    ("torn", lambda _, log: without(log, "d:0")),
    ("lost", lambda _, log: without(log, "b:0", "b:1")),
    ("aborted", lambda _, log: log[0].append((11, "c:0"))),
    ("aborted", lambda _, log: log[0].append((11, "e:0"))),
    ("aborted", lambda _, log: log[0].append((11, "x:0"))),
    ("aborted", lambda history, _: history.readings["r"].append(Seen(0, 5, "c:0", 50.0))),
    ("aborted", lambda history, _: history.readings["r"].append(Seen(0, 5, "e:0", 50.0))),
    ("unsaid", lambda history, _: history.readings["r"].append(Seen(1, 8, "d:1", 50.0))),
    ("backwards", lambda history, _: history.readings["r"].append(Seen(0, 0, "a:0", 50.0))),
    (
        "skip",
        lambda history, _: history.readings.update(
            r=[Seen(0, -1, "a:0", 5.0), Seen(0, 3, "b:0", 15.0)]
        ),
    ),
    ("precommitted", lambda history, _: history.readings["r"].append(Seen(0, 7, "d:0", 29.0))),
    ("cycle", lambda history, _: history.transactions["a"].reads.append(Seen(1, 2, "b:1", 16.0))),
    ("cycle", lambda history, _: history.transactions["a"].reads.append(Seen(0, 0, "a:0", 16.0))),
]


@pytest.mark.parametrize(
    ("named", "damage"), DAMAGES, ids=[f"{n}-{d[0]}" for n, d in enumerate(DAMAGES)]
)
def test_each_breach_is_named(named: str, damage: Damage) -> None:
    history, log = good()
    damage(history, log)
    assert named in {breach.split(":")[0] for breach in transaction_violations(history, log)}


def test_a_transaction_whose_values_change_places_is_named() -> None:
    history, log = good()
    history.transactions["a"].writes = {"a:0": 0, "a:1": 1, "a:2": 0}
    log[0] = [(0, "a:2"), (2, "a:0"), *log[0][1:]]
    history.readings.clear()
    assert transaction_violations(history, log) == ["order: partition 0: a:0 is behind a later one"]


def test_transactions_that_read_others_in_part_are_counted() -> None:
    history, log = good()
    assert fractured(history, log) == 0
    history.transactions["b"].reads = [Seen(1, 1, "a:1", 5.0)]
    assert fractured(history, log) == 0, "it did not read the other partition"
    history.transactions["d"].fate = Fate.COMMITTED
    history.transactions["d"].reads = [Seen(0, 0, "a:0", 5.0), Seen(1, 2, "b:1", 25.0)]
    assert fractured(history, log) == 1, "b:0 is behind what it had read of its partition"


SOURCE = {0: ["x", "y", "z"], 1: ["p"]}


@pytest.mark.parametrize(
    ("copied", "named"),
    [
        (["x", "y"], None),
        (["x", "y", "y"], "twice"),
        (["x"], "missing"),
        (["x", "y", "z"], "beyond"),
        (["y", "x"], "order"),
    ],
)
def test_a_copy_has_each_record_once_in_order(copied: list[str], named: str | None) -> None:
    copy = {0: list(enumerate(copied)), 1: [(5, "p")]}
    found = copy_violations(SOURCE, copy, {0: 2, 1: 1})
    assert len(found) == (named is not None)
    assert named is None or named in found[0]


def test_a_position_beyond_records_that_no_member_got_is_named() -> None:
    assert list(delivery_violations({0: {0, 1, 2}}, {0: 3, 1: 0})) == []
    assert len(list(delivery_violations({0: {0, 2}}, {0: 3}))) == 1
