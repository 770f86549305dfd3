"""`make differential`: Apache Kafka and Lakehead are asked the same, and answer the same.

A seeded stream of requests about groups goes to both, one after the other, and what they answer is
compared. Where they differ, the last requests are shown and a new group is begun. What differs for
a reason is in `known_difference`. Needs Kafka's jars (`bench.apache_kafka`).
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

from tests.differential.group_draw import TOPICS, Draw
from tests.differential.group_requests import Asked
from tests.differential.group_servers import group_servers
from tests.differential.sides import Answer, Side

CLIENTS = 4
GROUP_MAX_SIZE = 3
LENGTH = 60
SHOWN = 6
_ANSWERED_S, _WAITS_S, _LATE_S = 0.06, 0.25, 1.0
"""How long others may take to be answered; until a client counts as waiting; until one that only
one side answered counts as waiting for the other side.
"""

Answers = dict[int, Answer]


def main() -> None:
    """Run as the arguments say; status 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=20, help="groups to ask about")
    given = parser.parse_args()
    sys.exit(asyncio.run(_run(given.seed, given.groups)))


async def _run(seed: int, groups: int) -> bool:
    size = {"group.max.size": str(GROUP_MAX_SIZE)}
    async with group_servers(seed, size, group_max_size=GROUP_MAX_SIZE) as (theirs, ours):
        sides = [
            await Side.connect("Kafka", theirs, CLIENTS),
            await Side.connect("Lakehead", ours, CLIENTS),
        ]
        for side in sides:
            await side.prepare(TOPICS)
        return await _compare(sides, seed, groups)


async def _compare(sides: Sequence[Side], seed: int, groups: int) -> bool:
    asked, different, known = 0, 0, 0
    names: list[str] = []
    for number in range(groups):
        names.append(f"g{seed}-{number}")
        for side in sides:
            side.forget()
        draw = Draw(random.Random(f"{seed}-{number}"), names[-1], names[:-1], CLIENTS)
        trail: list[tuple[Asked, Answers]] = []
        for _ in range(LENGTH):
            request = draw.draw(sides[0])
            if request is None:
                break
            if _is_uncertain(request, sides[0]):
                continue
            theirs, ours = await _ask(request, sides)
            asked += 1
            trail.append((request, theirs))
            if theirs != ours:
                reason = known_difference(request, theirs, ours)
                known += reason is not None
                if reason is None:
                    different += 1
                    _show(trail, ours)
                break
        for side in sides:
            for client in range(CLIENTS):
                await side.renew(client)
    print(f"{asked} requests about {groups} groups: {different} differ, {known} as they should")
    return different > 0


async def _ask(request: Asked, sides: Sequence[Side]) -> tuple[Answers, Answers]:
    """Ask both, and return what they answered to anyone."""
    for side in sides:
        request.send(side)
    began = time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        theirs, ours = (side.answered() for side in sides)
        spent = time.monotonic() - began
        if theirs != ours:
            is_over = spent > _LATE_S
        elif request.client not in theirs:
            is_over = spent > _WAITS_S
        else:
            is_over = spent > _ANSWERED_S or all(len(side.waiting) == 1 for side in sides)
        if is_over:
            return sides[0].take(), sides[1].take()


def _is_uncertain(request: Asked, side: Side) -> bool:
    """Return true if Kafka leaves open what comes of it: any member may lead after a leader left
    others behind, and of two requests that wait in one name the first is forgotten.
    """
    if request.kind in {"join", "sync"}:
        return request.identity in {side.asking_as[client] for client in side.waiting}
    present = len(side.waiting) + sum(1 for one in side.identities if one.member_id)
    if request.kind != "leave" or present <= 2:
        return False
    return request.who(side).leads or bool(request.fields["others"])


def known_difference(request: Asked, theirs: Answers, ours: Answers) -> str | None:
    """Return why these answers differ as they should, or None."""
    full = "group_max_size_reached"
    codes = theirs.get(request.client, ("",))[0], ours.get(request.client, ("",))[0]
    alone = [ours[client][0] for client in ours.keys() - theirs.keys()]
    if alone and all(code == "unknown_member_id" for code in alone):
        return "Kafka leaves the SyncGroup of a member that is removed without an answer"
    if alone and request.kind == "join" and codes == (full, full):
        return "who found no room is not waited for any more; Kafka waits for its session's end"
    if request.kind == "describe" and _states(theirs) == {"Dead"} and _states(ours) == {"Empty"}:
        return "Kafka does not show a group of which nothing was written yet"
    if request.kind == "list":
        lists = theirs[request.client], ours[request.client]
        if _has_more_empty(*lists):
            return "Kafka lists a group of which only refused members have been heard of"
        if _has_more_empty(*reversed(lists)):
            return "Kafka does not list a group that a refused commit made, as nothing is written"
    if request.kind == "join" and request.fields["instance"] and codes[0] == full:
        return "a static member has its place in a full group when it comes back"
    return None


def _has_more_empty(one: Answer, other: Answer) -> bool:
    """Return true if a list has empty groups without a protocol that another one lacks, and is the
    same else.
    """
    (code, groups), (other_code, other_groups) = one, other
    more = [group for group in groups if group not in other_groups]
    return (
        code == other_code
        and bool(more)
        and [group for group in groups if group not in more] == other_groups
        and all(group[1:] == ("", "Empty", "classic") for group in more)
    )


def _states(answers: Answers) -> set[str]:
    return {group[3] for answer in answers.values() for group in answer if group[0]}


def _show(trail: Sequence[tuple[Asked, Answers]], ours: Answers) -> None:
    print(f"--- {trail[-1][0].group}")
    for request, theirs in trail[-SHOWN:]:
        print(f"  {request}\n    Kafka    {theirs}")
    print(f"    Lakehead {ours}", flush=True)


if __name__ == "__main__":
    main()
