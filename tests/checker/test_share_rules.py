"""The rules of share groups name each breach that is put in, and nothing else."""

from collections.abc import Callable

import pytest

from tests.checker.share_history import OK, Delivery, Place, ShareHistory, Verdict
from tests.checker.share_rules import (
    FORBIDDEN,
    NOT_THE_MEMBERS,
    ShareLimits,
    share_violations,
    unfinished,
)

DELIVERIES_MAX, LOCK_S = 5, 10.0
LIMITS = ShareLimits(deliveries_max=DELIVERIES_MAX, lock_s=LOCK_S)
Log = dict[int, list[tuple[int, str]]]
ACCEPTED, RELEASED, REJECTED, WORN_OUT, UNCLEAR = (Place(0, offset) for offset in range(5))
ABORTED = "aborted"


def good() -> tuple[ShareHistory, Log]:
    """Return a history of five records, and its log."""
    history = ShareHistory()
    log: Log = {0: [(place.offset, value_of(place)) for place in places()]}
    deliver(history, ACCEPTED, "a", 1, 10.0)
    say(history, ACCEPTED, "a", Verdict.ACCEPT, 12.0, OK)
    deliver(history, RELEASED, "a", 1, 10.0)
    say(history, RELEASED, "a", Verdict.RELEASE, 12.0, OK)
    deliver(history, RELEASED, "b", 2, 20.0)
    say(history, RELEASED, "b", Verdict.ACCEPT, 22.0, OK)
    deliver(history, REJECTED, "b", 1, 10.0)
    say(history, REJECTED, "b", Verdict.REJECT, 12.0, OK)
    for count in range(1, DELIVERIES_MAX + 1):
        deliver(history, WORN_OUT, "c", count, 10.0 * count)
        say(history, WORN_OUT, "c", Verdict.RELEASE, 10.0 * count + 2, OK)
    deliver(history, UNCLEAR, "a", 1, 10.0)
    say(history, UNCLEAR, "a", Verdict.ACCEPT, 12.0, "")
    return history, log


def places() -> list[Place]:
    return [ACCEPTED, RELEASED, REJECTED, WORN_OUT, UNCLEAR]


def value_of(place: Place) -> str:
    return f"p:{place.offset}"


def deliver(
    history: ShareHistory,
    place: Place,
    member: str,
    count: int | None,
    begun: float,
    value: str | None = None,
) -> None:
    """Give a record to a member within a second."""
    value = value_of(place) if value is None else value
    history.record_delivery(place, Delivery(member, value, count, begun, begun + 1))


def say(
    history: ShareHistory, place: Place, member: str, verdict: Verdict, begun: float, code: str
) -> None:
    """Have a member say something of a record; the response is there within a second."""
    history.record_verdict(place, member, verdict, begun)
    if code:
        history.record_response(member, [place], code, begun + 1)


def breaches(history: ShareHistory, log: Log, limits: ShareLimits = LIMITS) -> list[str]:
    return share_violations(
        history, log, limits, unseen=lambda value: "was aborted" if value == ABORTED else ""
    )


def test_a_good_history_has_no_breach() -> None:
    history, log = good()
    assert breaches(history, log) == []
    assert unfinished(history, log, DELIVERIES_MAX) == 0


def test_members_that_take_over_have_no_breach() -> None:
    history, log = good()
    deliver(history, UNCLEAR, "b", 2, 14.0)
    say(history, UNCLEAR, "b", Verdict.ACCEPT, 16.0, OK)
    log[0].append((9, "p:9"))
    late = Place(0, 9)
    deliver(history, late, "a", 1, 10.0)
    deliver(history, late, "b", 2, 30.0)
    say(history, late, "a", Verdict.ACCEPT, 32.0, NOT_THE_MEMBERS)
    say(history, late, "b", Verdict.ACCEPT, 34.0, OK)
    assert breaches(history, log) == []


def lose_verdict(history: ShareHistory, _: Log) -> None:
    del history.acknowledgements[ACCEPTED]


def share(history: ShareHistory, _: Log) -> None:
    deliver(history, ACCEPTED, "b", 1, 11.0)
    history.acknowledgements[ACCEPTED][0].begun = 12.5
    history.acknowledgements[ACCEPTED][0].ended = 13.0


def take(history: ShareHistory, _: Log) -> None:
    history.acknowledgements[ACCEPTED][0].code = NOT_THE_MEMBERS
    deliver(history, ACCEPTED, "b", 2, 40.0)
    say(history, ACCEPTED, "b", Verdict.ACCEPT, 42.0, OK)


def repeat_count(history: ShareHistory, _: Log) -> None:
    deliver(history, WORN_OUT, "b", 4, 60.0)


def leave_out(history: ShareHistory, _: Log) -> None:
    history.deliveries[WORN_OUT].pop(2)
    history.acknowledgements[WORN_OUT].pop(2)


def begin_late(history: ShareHistory, log: Log) -> None:
    log[0].append((9, "p:9"))
    deliver(history, Place(0, 9), "a", 2, 10.0)
    say(history, Place(0, 9), "a", Verdict.ACCEPT, 12.0, OK)


def refuse(history: ShareHistory, _: Log) -> None:
    history.acknowledgements[UNCLEAR][0].code = min(FORBIDDEN)


Damage = Callable[[ShareHistory, Log], object]
DAMAGES: list[tuple[str, Damage]] = [
    ("lost", lambda _, log: log[0].append((9, "p:9"))),
    ("lost", lose_verdict),
    ("unsaid", lambda _, log: log[0].pop(0)),
    ("unsaid", lambda history, _: deliver(history, UNCLEAR, "b", 2, 20.0, "other")),
    ("unsaid", lambda history, _: deliver(history, Place(1, 0), "b", 1, 20.0)),
    ("aborted", lambda history, _: deliver(history, Place(0, 7), "b", 1, 20.0, ABORTED)),
    ("again", lambda history, _: deliver(history, ACCEPTED, "b", 2, 13.5)),
    ("again", lambda history, _: deliver(history, ACCEPTED, "a", 1, 13.5)),
    ("again", lambda history, _: deliver(history, REJECTED, "a", None, 13.5)),
    ("shared", share),
    ("taken", take),
    ("limit", lambda history, _: deliver(history, WORN_OUT, "b", DELIVERIES_MAX + 1, 60.0)),
    ("limit", lambda history, _: deliver(history, UNCLEAR, "b", 0, 20.0)),
    ("count", repeat_count),
    ("count", leave_out),
    ("count", begin_late),
    ("refused", refuse),
]


@pytest.mark.parametrize(
    ("named", "damage"), DAMAGES, ids=[f"{n}-{d[0]}" for n, d in enumerate(DAMAGES)]
)
def test_each_breach_is_named(named: str, damage: Damage) -> None:
    history, log = good()
    damage(history, log)
    assert {breach.split(":")[0] for breach in breaches(history, log)} == {named}


def test_a_fault_of_a_node_excuses_what_may_come_of_it() -> None:
    faulty = ShareLimits(deliveries_max=DELIVERIES_MAX, lock_s=LOCK_S, faults=[(5.0, 30.0)])
    for damage in (take, leave_out, begin_late):
        history, log = good()
        damage(history, log)
        assert breaches(history, log, faulty) == []
    for damage in (lose_verdict, share, repeat_count):
        history, log = good()
        damage(history, log)
        assert breaches(history, log, faulty) != []


def test_a_member_that_dies_excuses_deliveries_that_were_not_seen() -> None:
    for damage in (leave_out, begin_late):
        history, log = good()
        damage(history, log)
        history.record_end("x", 8.0, 35.0)
        assert breaches(history, log) == []


def test_a_member_of_which_no_counts_are_known_fills_the_numbers_up() -> None:
    history, log = good()
    leave_out(history, log)
    deliver(history, WORN_OUT, "java", None, 30.0)
    assert breaches(history, log) == []


def test_a_verdict_after_the_lock_may_be_refused() -> None:
    history, log = good()
    take(history, log)
    late = history.acknowledgements[ACCEPTED][0]
    late.begun, late.ended = 10.0 + LOCK_S, 11.0 + LOCK_S
    assert breaches(history, log) == []


def test_a_late_verdict_on_a_record_that_is_done_may_be_confirmed() -> None:
    history, log = good()
    say(history, RELEASED, "a", Verdict.ACCEPT, 30.0, OK)
    deliver(history, ACCEPTED, "b", 2, 11.0)
    history.acknowledgements.pop(ACCEPTED)
    say(history, ACCEPTED, "b", Verdict.REJECT, 12.0, OK)
    say(history, ACCEPTED, "a", Verdict.ACCEPT, 14.0, OK)
    assert breaches(history, log) == []


def test_lines_that_are_not_understood_are_named() -> None:
    history, log = good()
    history.contradictions.append("not understood: x")
    assert breaches(history, log) == history.contradictions


def test_records_that_were_used_up_unseen_are_counted() -> None:
    history, log = good()
    for count in range(2):
        history.deliveries[WORN_OUT].pop()
        assert breaches(history, log) == []
        assert unfinished(history, log, DELIVERIES_MAX) == 1, count
    history.deliveries[WORN_OUT].pop()
    assert [one.split(":")[0] for one in breaches(history, log)] == ["lost"]
