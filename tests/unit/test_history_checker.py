"""The checker of crash tests is itself tested: each kind of damage to a good log must be named."""

import random

import pytest

from tests.support.history import History, Sent, identity_of, value_of, violations

SIZE = 100
MutableLog = dict[int, list[tuple[int, bytes]]]


def good(rng: random.Random) -> tuple[History, MutableLog]:
    """Two producers' records in two partitions, some without an answer, all of it in order."""
    history = History()
    log: MutableLog = {0: [], 1: []}
    counters = {"a": 0, "b": 0}
    for _ in range(200):
        producer, partition = rng.choice("ab"), rng.randrange(2)
        sent = Sent(producer, counters[producer])
        counters[producer] += 1
        history.record_sent(sent, partition)
        if rng.random() < 0.1:
            history.record_refused(sent, "timed out")
            if rng.random() < 0.5:
                continue
        offset = len(log[partition])
        log[partition].append((offset, value_of(sent, SIZE)))
        if sent not in history.refused:
            history.record_acknowledged(sent, partition, offset)
        if rng.random() < 0.3:
            history.record_seen(partition, offset, value_of(sent, SIZE))
    return history, log


def acknowledged_position(history: History, log: MutableLog, rng: random.Random) -> int:
    """Index in partition 0 of an acknowledged record that has a neighbour after it."""
    return rng.choice(
        [
            index
            for index, (_, value) in enumerate(log[0][:-1])
            if identity_of(value) in history.acknowledged
        ]
    )


def renumbered(records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, (_, value) in enumerate(records)]


def named(found: list[str]) -> set[str]:
    return {line.split(":")[0] for line in found}


@pytest.mark.parametrize("seed", range(20))
def test_a_good_history_passes(seed: int) -> None:
    assert violations(*good(random.Random(seed))) == []


@pytest.mark.parametrize("seed", range(20))
def test_each_damage_is_named(seed: int) -> None:
    rng = random.Random(seed)

    history, log = good(rng)
    del log[0][acknowledged_position(history, log, rng)]
    assert {"lost", "gap"} <= named(violations(history, log))

    history, log = good(rng)
    del log[0][acknowledged_position(history, log, rng)]
    log[0] = renumbered(log[0])
    assert {"lost", "moved"} <= named(violations(history, log))

    history, log = good(rng)
    index = acknowledged_position(history, log, rng)
    log[0] = renumbered([*log[0], log[0][index]])
    assert {"duplicate", "order"} <= named(violations(history, log))

    history, log = good(rng)
    index = acknowledged_position(history, log, rng)
    (first, one), (second, other) = log[0][index : index + 2]
    log[0][index : index + 2] = [(first, other), (second, one)]
    assert "moved" in named(violations(history, log))

    history, log = good(rng)
    index = acknowledged_position(history, log, rng)
    offset, value = log[0][index]
    log[0][index] = (offset, value[:-1] + b"!")
    assert {"damaged", "lost"} <= named(violations(history, log))

    history, log = good(rng)
    log[1].append((len(log[1]), value_of(Sent("stranger", 1), SIZE)))
    assert "damaged" in named(violations(history, log))


def test_a_lost_tail_is_named() -> None:
    history, log = good(random.Random(1))
    tail = [identity_of(value) for _, value in log[0][-10:]]
    del log[0][-10:]
    lost = [line for line in violations(history, log) if line.startswith("lost")]
    assert len(lost) == sum(identity in history.acknowledged for identity in tail)


def test_what_a_consumer_saw_may_not_vanish() -> None:
    history, log = good(random.Random(2))
    sent = Sent("a", 10_000)
    history.record_sent(sent, 0)
    history.record_seen(0, len(log[0]), value_of(sent, SIZE))
    assert named(violations(history, log)) == {"unsaid"}


def test_an_offset_may_not_show_two_values() -> None:
    history, log = good(random.Random(3))
    history.record_seen(0, 0, value_of(Sent("a", 10_001), SIZE))
    history.record_seen(0, 0, value_of(Sent("a", 10_002), SIZE))
    assert any("showed" in line for line in violations(history, log))
