"""`make differential`: access rules are on, and a user with random grants asks Kafka and Lakehead.

All clients are User:ANONYMOUS, which needs no authentication; the administrator, Kafka itself and
the user connect from addresses of their own, and rules name these. Each round begins with topics,
and with rules that are drawn for the user; some change while it goes on.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from lakehead.broker.security.standard_authorizer import CLASS_NAME
from tests.differential.acl_draw import (
    ADMIN_HOST,
    DRAWS,
    USER_HOST,
    everything,
    grant,
    grants,
)
from tests.differential.brokers import CHANGING, CREATE_TOPICS, Broker, Request
from tests.differential.chances import Chances
from tests.differential.requests import (
    FLAGS,
    KAFKAS_SETTINGS,
    ROUND,
    common_versions,
    settled,
)
from tests.differential.stream import Report, Step, chances_of, follow
from tests.support.node_client import close_clients

ACL_APIS = frozenset({30, 31})
_ON = {"authorizer.class.name": CLASS_NAME, "allow.everyone.if.no.acl.found": "true"}
"""Every resource has a rule, of the administrator: so all that no rule allows is denied."""
_ALL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_PAUSE_S, _SETTLED_TIMES = 0.03, 100
_CHANGE = 0.08
"""How often rules change within a round."""


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
        flags = [part for setting, value in _ON.items() for part in (f"--{setting}", value)]
        kafkas = kafka_server(folders[0], settings={**KAFKAS_SETTINGS, **_ON})
        with kafkas as kafka, lakehead_server(folders[1], *FLAGS, *flags) as lakehead:
            report = asyncio.run(_run((kafka.port, lakehead.port), given.seed, given.requests))
    report.show()
    sys.exit(bool(report.unknown))


async def _run(ports: tuple[int, int], seed: int, requests: int) -> Report:
    report = Report()
    connect = partial(Broker.connect, local_host=USER_HOST, admin_host=ADMIN_HOST)
    sides = (
        await connect("Kafka", ports[0]),
        await connect("Lakehead", ports[1]),
    )
    try:
        versions = common_versions(*[await side.versions() for side in sides])
        for side in sides:
            await _create(side, everything("127.0.0.1"), everything(ADMIN_HOST))
            await side.wait_coordinated()
        for number in itertools.count():
            rest = requests - sum(report.asked.values())
            if rest <= 0:
                break
            await _round(sides, chances_of(seed, number, versions), min(ROUND, rest), report)
    finally:
        await close_clients()
    return report


async def _create(side: Broker, *rules: list[dict[str, Any]]) -> None:
    answer = await side.command(30, 3, {"creations": list(itertools.chain(*rules))})
    assert all(one.error_code is ErrorCode.none for one in answer.results), answer


async def _round(sides: Sequence[Broker], c: Chances, count: int, report: Report) -> None:
    kafka = sides[0]
    report.trail.clear()
    topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in c.names[:3]]
    rules = grants(c)
    for side in sides:
        of_user = {**_ALL, "host_filter": USER_HOST}
        of_others = [{**_ALL, "host_filter": host} for host in ("*", "10.1.1.1")]
        await side.command(31, 3, {"filters": [of_user, *of_others]})
        await side.command(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000})
        await _create(side, rules)
        await side.learn_topics(c.prefix)
    await settled(sides, c.prefix)
    await _agreed(sides)
    c.topics_seen = dict(kafka.topics)
    report.trail.append(f"rules: {rules}")
    for _ in range(count):
        if c.rng.random() < _CHANGE:
            change = [grant(c)]
            report.trail.append(f"rule: {change}")
            for side in sides:
                await _create(side, change)
            await _agreed(sides)
        request: Request = c.rng.choice(DRAWS)(c)
        theirs, ours = [await side.ask(request) for side in sides]
        if request.key in CHANGING:
            await settled(sides, c.prefix)
        if request.key in ACL_APIS:
            await _agreed(sides)
        follow(c, request, Step(theirs, dict(kafka.topics)))
        if report.compare(request, theirs, ours):
            break  # what comes after may differ, too


async def _agreed(sides: Sequence[Broker]) -> None:
    """Wait until both have the same rules, or will never have."""
    for _ in range(_SETTLED_TIMES):
        shown = [await side.command(29, 3, _ALL) for side in sides]
        rules = [
            {
                (of.resource_type, of.resource_name, of.pattern_type, one)
                for of in answer.resources
                for one in of.acls
            }
            for answer in shown
        ]
        await asyncio.sleep(_PAUSE_S)
        if {repr(one) for one in rules[0]} == {repr(one) for one in rules[1]}:
            return


if __name__ == "__main__":
    main()
