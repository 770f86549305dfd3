"""`make differential`: topics, records and transactions, asked of Kafka and of Lakehead.

A seeded stream of requests goes to a real Kafka and to a plain `lakehead start`; the answers are
compared but for what two right brokers may tell differently. Each kind of difference is shown once,
with the request, and counted. Needs Kafka's jars (`bench.apache_kafka`).
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from tests.differential import record_draw, topic_draw, transaction_draw
from tests.differential.brokers import CREATE_TOPICS, PRODUCE, Broker, Records, Request
from tests.differential.by_design import reason_for
from tests.differential.chances import Chances, Versions
from tests.differential.trees import Tree, differences
from tests.support.node_client import close_clients

ROUND = 60
"""Requests before both begin anew with other topics and producers."""
_SETTLED_S, _SAME_TIMES, _SETTLED_TIMES = 0.08, 2, 40
"""Until every broker of Kafka has what its controller decided."""
_CHANGING = {19, 20, 37, 33, 44}
_SHOWN = 700
_WORDS = ("silent", "closed", "open")
_COORDINATED_S = 30.0

DRAWS: tuple[Callable[[Chances], Request], ...] = (
    *topic_draw.CHANGES,
    *topic_draw.CONFIG_CHANGES,
    *topic_draw.INQUIRIES,
    *record_draw.DRAWS,
    *record_draw.DRAWS,
    *transaction_draw.DRAWS,
    *transaction_draw.DRAWS,
)


@dataclass(slots=True)
class Report:
    """What was asked and what differed."""

    asked: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def compare(self, request: Request, theirs: Tree, ours: Tree) -> bool:
        """Count, and show what is new; return whether one may have done what the other did not."""
        self.asked[request.name] += 1
        found = False
        for path, one, other in differences(theirs, ours):
            is_code = isinstance(one, str) and "none" in (one, other)
            found = found or is_code or theirs in _WORDS or ours in _WORDS
            reason = reason_for(request, path, one, other)
            if reason is not None:
                self.known[reason] += 1
                continue
            what = f"{request.name} {path}: Kafka {one!r:.300}, Lakehead {other!r:.300}"
            self.unknown[what] += 1
            if self.unknown[what] == 1:
                print(f"--- {what}\n    {str(request)[:_SHOWN]}")
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


def main() -> None:
    """Run as the arguments say; status 1 if an answer differs that should not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        folders = Path(name) / "kafka", Path(name) / "lakehead"
        for folder in folders:
            folder.mkdir()
        flags = ("--node.id", "1", "--num.partitions", "4")
        with kafka_server(folders[0]) as kafka, lakehead_server(folders[1], *flags) as lakehead:
            report = asyncio.run(_run((kafka.port, lakehead.port), given.seed, given.requests))
    report.show()
    sys.exit(bool(report.unknown))


async def _run(ports: tuple[int, int], seed: int, requests: int) -> Report:
    report = Report()
    kafka = await Broker.connect("Kafka", ports[0])
    lakehead = await Broker.connect("Lakehead", ports[1])
    sides = (kafka, lakehead)
    try:
        versions = _common(await kafka.versions(), await lakehead.versions())
        for side in sides:
            await _coordinated(side)
        for number in itertools.count():
            rest = requests - sum(report.asked.values())
            if rest <= 0:
                break
            rng = random.Random(f"{seed}-{number}")
            await _round(sides, rng, f"r{number}", versions, min(ROUND, rest), report)
    finally:
        await close_clients()
    return report


def _common(theirs: Versions, ours: Versions) -> Versions:
    both = {key: (theirs[key], ours[key]) for key in theirs.keys() & ours.keys()}
    common = {key: (max(a[0], b[0]), min(a[1], b[1])) for key, (a, b) in both.items()}
    return common | {PRODUCE: (3, common[PRODUCE][1])}


async def _coordinated(side: Broker) -> None:
    """Wait until groups and transactions have a coordinator."""
    for key_type in (0, 1):
        tree = {"coordinator_keys": ["k"], "key_type": key_type}
        async with asyncio.timeout(_COORDINATED_S):
            while True:
                answer = await side.ask(Request(key=10, version=4, tree=tree))
                if answer["coordinators"][0]["error_code"] == "none":
                    break


async def _round(
    sides: Sequence[Broker],
    rng: random.Random,
    prefix: str,
    versions: Versions,
    count: int,
    report: Report,
) -> None:
    kafka = sides[0]
    chances = Chances(rng, prefix, versions, kafka)
    for side in sides:
        await side.learn_topics(prefix)
    await _both(sides, _first_topics(chances), prefix, report)
    for _ in range(count - 1):
        request = _draw(chances)
        theirs, differs = await _both(sides, request, prefix, report)
        _follow(chances, request, theirs)
        if differs:
            return  # what comes after may differ, too


def _draw(chances: Chances) -> Request:
    return chances.rng.choice(DRAWS)(chances)


def _first_topics(c: Chances) -> Request:
    topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in c.names[:2]]
    return c.request(CREATE_TOPICS, {"topics": topics, "timeout": 9000})


async def _both(
    sides: Sequence[Broker], request: Request, prefix: str, report: Report
) -> tuple[Tree, bool]:
    theirs, ours = [await side.ask(request) for side in sides]
    if request.key in _CHANGING:
        await _settled(sides, prefix)
    return theirs, report.compare(request, theirs, ours)


async def _settled(sides: Sequence[Broker], prefix: str) -> None:
    """Learn the topics, once both have the same for a while, or when they will never."""
    same = 0
    for _ in range(_SETTLED_TIMES):
        await asyncio.sleep(_SETTLED_S)
        before = dict(sides[0].topics)
        for side in sides:
            await side.learn_topics(prefix)
        same = same + 1 if before == sides[0].topics == sides[1].topics else 0
        if same == _SAME_TIMES:
            return


def _follow(c: Chances, request: Request, answer: Tree) -> None:
    """Count on the sequences of what was taken."""
    if request.key == 22 and isinstance(answer, dict) and answer["error_code"] == "none":
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


if __name__ == "__main__":
    main()
