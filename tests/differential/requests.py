"""`make differential`: topics, records and transactions, asked of Kafka and of Lakehead.

A seeded stream of requests goes to a real Kafka and to a plain `lakehead start`; the answers are
compared but for what two right brokers may tell differently. Each kind of difference is shown once,
with the request, and counted. Needs Kafka's jars (`bench.apache_kafka`).
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from lakehead.broker.cli.cluster import load_state
from lakehead.broker.protocol.node_proof import NodeProof
from tests.differential.brokers import CHANGING, PRODUCE, Broker
from tests.differential.chances import Chances, Versions
from tests.differential.stream import (
    STREAMS,
    Draws,
    Recording,
    Report,
    Step,
    chances_of,
    follow,
    recorded,
    requests_of,
)
from tests.support.node_client import close_clients

ROUND = 60
"""Requests before both begin anew with other topics and producers."""
KAFKAS_SETTINGS = {"log.initial.task.delay.ms": "86400000"}
FLAGS = ("--node.id", "1", "--num.partitions", "4", "--no-maintain")
"""Neither removes old records meanwhile: the times of all of them are old."""
_SETTLED_S, _SAME_TIMES, _SETTLED_TIMES = 0.08, 2, 40
"""Until every broker of Kafka has what its controller decided."""


def main() -> None:
    """Run as the arguments say; status 1 if an answer differs that should not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--about", choices=STREAMS, default="all", help="what requests are about")
    parser.add_argument("--record", type=Path, help="file for Kafka's answers to the longest round")
    given = parser.parse_args()
    if given.record is not None and given.about != "all":
        parser.error("recordings are of requests about all")
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        folders = Path(name) / "kafka", Path(name) / "lakehead"
        for folder in folders:
            folder.mkdir()
        kafkas = kafka_server(folders[0], settings=KAFKAS_SETTINGS)
        with kafkas as kafka, lakehead_server(folders[1], *FLAGS) as lakehead:
            ports = kafka.port, lakehead.port
            proof = proof_of(folders[1])
            draws = STREAMS[given.about]
            report, longest = asyncio.run(_run(ports, proof, given.seed, given.requests, draws))
    if given.record is not None:
        given.record.write_text(recorded(longest))
    report.show()
    sys.exit(bool(report.unknown))


def proof_of(folder: Path) -> NodeProof:
    """Return what has the node that was started in a folder take requests for another node's."""
    state = asyncio.run(load_state(str(folder / "data")))
    return NodeProof(secret=state.node_secret, to_node=min(state.nodes))


async def _run(
    ports: tuple[int, int], proof: NodeProof, seed: int, requests: int, draws: Draws
) -> tuple[Report, Recording]:
    """Return the report, and what Kafka answered to the longest round."""
    report, longest = Report(), Recording(seed, 0, {}, [])
    kafka = await Broker.connect("Kafka", ports[0])
    lakehead = await Broker.connect("Lakehead", ports[1], proof)
    sides = (kafka, lakehead)
    try:
        versions = common_versions(await kafka.versions(), await lakehead.versions())
        for side in sides:
            await side.wait_coordinated()
        for number in itertools.count():
            rest = requests - sum(report.asked.values())
            if rest <= 0:
                break
            chances = chances_of(seed, number, versions)
            steps = await _round(sides, chances, min(ROUND, rest), report, draws)
            if len(steps) > len(longest.steps):
                longest = Recording(seed, number, versions, steps)
    finally:
        await close_clients()
    return report, longest


def common_versions(theirs: Versions, ours: Versions) -> Versions:
    both = {key: (theirs[key], ours[key]) for key in theirs.keys() & ours.keys()}
    common = {key: (max(a[0], b[0]), min(a[1], b[1])) for key, (a, b) in both.items()}
    return common | {PRODUCE: (3, common[PRODUCE][1])}


async def _round(
    sides: Sequence[Broker], chances: Chances, count: int, report: Report, draws: Draws
) -> list[Step]:
    """Ask both the same until something differs that may have had an effect."""
    kafka, steps = sides[0], []
    report.trail.clear()
    for side in sides:
        await side.learn_topics(chances.prefix)
    for request in requests_of(chances, count, draws):
        theirs, ours = [await side.ask(request) for side in sides]
        if request.key in CHANGING:
            await settled(sides, chances.prefix)
        steps.append(Step(theirs, dict(kafka.topics)))
        follow(chances, request, steps[-1])
        if report.compare(request, theirs, ours):
            break  # what comes after may differ, too
    return steps


async def settled(sides: Sequence[Broker], prefix: str) -> None:
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


if __name__ == "__main__":
    main()
