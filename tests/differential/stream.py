"""The seeded stream of requests, what Kafka told to it, and what of it differs."""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.differential import (
    cluster_draw,
    lifetime_draw,
    limit_draw,
    record_draw,
    session_draw,
    topic_draw,
    transaction_draw,
)
from tests.differential.brokers import (
    CHANGING,
    CREATE_TOPICS,
    DELETE_RECORDS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    Records,
    Request,
)
from tests.differential.by_design import has_hidden_effect, reason_for
from tests.differential.chances import Chances, Versions
from tests.differential.trees import Tree, differences

_SHOWN, _TRAIL, _TRAILED = 700, 240, 8
_OF_EFFECT = CHANGING | {PRODUCE, DELETE_RECORDS, INIT_PRODUCER_ID, 24, 25, END_TXN, 27, 28, 30, 31}
_WORDS = ("silent", "closed", "open")

Draws = Sequence[Callable[[Chances], Request]]

DRAWS: Draws = (
    *topic_draw.CHANGES,
    *topic_draw.CONFIG_CHANGES,
    *topic_draw.INQUIRIES,
    *cluster_draw.DRAWS,
    *session_draw.DRAWS,
    *session_draw.DRAWS,
    *record_draw.DRAWS,
    *record_draw.DRAWS,
    *transaction_draw.DRAWS,
    *transaction_draw.DRAWS,
)

STREAMS: Mapping[str, Draws] = {
    "all": DRAWS,
    "limits": limit_draw.DRAWS,
    "lifetimes": lifetime_draw.DRAWS,
}
"""The streams of requests by their subject. Recordings are of the first."""


class Step(NamedTuple):
    """What Kafka answered, and the topics that it had then."""

    answer: Tree
    topics: dict[str, int]


class Recording(NamedTuple):
    """What Kafka answered to one round of a seed."""

    seed: int
    number: int
    versions: Versions
    steps: list[Step]


def recorded(made: Recording) -> str:
    """Return a recording as JSON."""
    seed, number, versions, steps = made
    lines = ",\n".join(json.dumps(step) for step in steps)
    head = f'{{"seed": {seed}, "round": {number}, "versions": {json.dumps(versions)}'
    return f'{head}, "steps": [\n{lines}\n]}}\n'


def recording(text: str) -> Recording:
    """Return the recording that is in JSON."""
    found = json.loads(text)
    versions = {int(key): (first, last) for key, (first, last) in found["versions"].items()}
    steps = [Step(*step) for step in found["steps"]]
    return Recording(found["seed"], found["round"], versions, steps)


def chances_of(seed: int, number: int, versions: Versions) -> Chances:
    """Return what the requests of one round are drawn from."""
    return Chances(random.Random(f"{seed}-{number}"), f"r{number}-", versions)


def requests_of(chances: Chances, count: int, draws: Draws = DRAWS) -> Iterator[Request]:
    """Yield the requests of one round; `follow` what is answered before the next is drawn."""
    yield _first_topics(chances)
    for _ in range(count - 1):
        yield chances.rng.choice(draws)(chances)


def _first_topics(c: Chances) -> Request:
    topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in c.names[:2]]
    return c.request(CREATE_TOPICS, {"topics": topics, "timeout": 9000})


@dataclass(slots=True)
class Report:
    """What was asked and what differed."""

    asked: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    trail: list[str] = field(default_factory=list)
    """What the round asked so far."""

    def compare(self, request: Request, theirs: Tree, ours: Tree) -> bool:
        """Count, and show what is new; return whether one may have done what the other did not."""
        self.asked[request.name] += 1
        self.trail.append(f"{str(request)[:_TRAIL]}\n        {theirs!r:.{_TRAIL}}")
        found = has_hidden_effect(request)
        for difference in differences(theirs, ours):
            path, one, other, _ = difference
            is_of_effect = request.key in _OF_EFFECT or bool(request.about)
            is_effect = is_of_effect and path.endswith(("error_code", "session_id"))
            found = found or is_effect or theirs in _WORDS or ours in _WORDS
            reason = reason_for(request, difference, (theirs, ours))
            if reason is not None:
                self.known[reason] += 1
                continue
            what = f"{request.name} {path}: Kafka {one!r:.300}, Lakehead {other!r:.300}"
            self.unknown[what] += 1
            if self.unknown[what] == 1:
                before = self.trail[-1 - _TRAILED : -1]
                print("\n".join([f"--- {what}", *(f"      after {one}" for one in before)]))
                print(f"    {str(request)[:_SHOWN]}")
                print(f"    Kafka    {theirs!r:.{_SHOWN}}\n    Lakehead {ours!r:.{_SHOWN}}")
                sys.stdout.flush()
        return found

    def show(self) -> None:
        """Print the sums."""
        print(f"\n{sum(self.asked.values())} requests: {dict(sorted(self.asked.items()))}")
        for reason, count in self.known.most_common():
            print(f"  as designed {count:5}  {reason}")
        for what, count in self.unknown.most_common():
            print(f"  DIFFERS     {count:5}  {what}")


def follow(c: Chances, request: Request, step: Step) -> None:
    """Take note of the topics, and count on the sequences of what was taken."""
    answer, c.topics_seen = step
    if (
        request.key == INIT_PRODUCER_ID
        and isinstance(answer, dict)
        and answer["error_code"] == "none"
    ):
        for key in [key for key in c.sequences if key[0] == request.about]:
            del c.sequences[key]
    if request.key != PRODUCE or not isinstance(answer, dict):
        return
    taken: dict[tuple[Any, Any], bool] = {}
    for topic in answer["responses"]:
        for part in topic["partition_responses"]:
            name = topic.get("name") or topic.get("topic_id")
            taken[name, part["index"]] = part["error_code"] == "none"
    for topic in request.tree["topic_data"]:
        for part in topic["partition_data"]:
            records = part["records"]
            if isinstance(records, Records) and records.producer is not None:
                if not taken.get((topic["name"], part["index"])):
                    continue
                fields = dict(records.fields)
                sequence = fields["base_sequence"] + len(fields["values"])
                c.sequences[records.producer, topic["name"], part["index"]] = sequence
