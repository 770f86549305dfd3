"""A storm of offset commits on one node: many consumers, each with one commit on its way.

Consumers are members of classic groups, of consumer groups (KIP-848), or of none. Apache Kafka is
measured beside the node, in turns on the same disk: the rates are medians of the turns.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.apache_kafka.server import kafka_server
from bench.cluster.load import make_topic
from bench.coordination._members import ConsumerMember, Line, Member, coordinated
from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from bench.maven import MissingTool
from bench.process import ServerProcess
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity

PART = "commits"
CONSUMERS = 100
TOPIC, PARTITIONS = "committed", 4
TURNS, TURN_S, WARM_S = 5, 3.0, 3.0
COMMITS_PER_S = 5000.0
_COMMIT = (8, 9)
_CODE = slice(-5, -3)
"""Place of the error code in a response about one partition."""


class Committer(NamedTuple):
    """A consumer: its connection, its name in its group and the epoch that its commits name."""

    line: Line
    group_id: str
    member_id: str = ""
    epoch: int = -1


async def _alone(port: int, number: int) -> Committer:
    return Committer(await Line.to(port), f"alone-{number}")


async def _classic(port: int, number: int) -> Committer:
    member = Member(await Line.to(port), f"classic-{number}")
    await member.rebalance()
    return Committer(member.line, member.group_id, member.member_id, member.generation)


async def _consumer(port: int, number: int) -> Committer:
    group_id = f"consumer-{number}"
    member = ConsumerMember(await Line.to(port), group_id, f"m{number}", TOPIC)
    await member.heartbeat()
    return Committer(member.line, group_id, member.member_id, member.epoch)


KINDS: dict[str, Callable[[int, int], Awaitable[Committer]]] = {
    "without members": _alone,
    "of classic groups": _classic,
    "of consumer groups": _consumer,
}


@dataclass(slots=True)
class _Turns:
    """The turns of one server with one kind of consumers."""

    server: ServerProcess
    committers: Sequence[Committer]
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """Of a commit."""
    taken: list[float] = field(default_factory=list)

    async def turn(self, seconds: float) -> None:
        """Commit for so long."""
        began, used = time.monotonic(), self.server.usage().cpu_seconds
        taken = await _storm(self.committers, seconds)
        self.rates.append(len(taken) / (time.monotonic() - began))
        self.cpu_us.append((self.server.usage().cpu_seconds - used) / len(taken) * 1e6)
        self.taken += taken


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure commits a second, and how long one takes then; of Apache Kafka too where it is."""
    with ExitStack() as running:
        servers = [_started(running, lakehead_server, folder / "lakehead")]
        try:
            servers.append(_started(running, kafka_server, folder / "kafka"))
        except MissingTool:
            pass
        for server in servers:
            await coordinated(server.port)
            make_topic(server.bootstrap, TOPIC, PARTITIONS)
        found: list[Figure] = []
        for kind in KINDS:
            found += await _measured(kind, servers, quick)
        return found


def _started(
    running: ExitStack, make: Callable[[Path], ServerProcess], folder: Path
) -> ServerProcess:
    folder.mkdir()
    return running.enter_context(make(folder))


async def _measured(kind: str, servers: Sequence[ServerProcess], quick: bool) -> list[Figure]:
    every = []
    for server in servers:
        join = KINDS[kind]
        committers = [await join(server.port, number) for number in range(CONSUMERS)]
        await _storm(committers, 1.0 if quick else WARM_S)
        every.append(_Turns(server, committers))
    for _ in range(1 if quick else TURNS):
        for turns in every:
            await turns.turn(1.0 if quick else TURN_S)
    for turns in every:
        for committer in turns.committers:
            committer.line.close()
    ours, theirs = every[0], every[1] if len(every) > 1 else None
    their_rate = None if theirs is None else median(theirs.rates)
    their_cpu_us = None if theirs is None else median(theirs.cpu_us)
    cpu_us = median(ours.cpu_us)
    what = f"{CONSUMERS} consumers {kind}"
    slow_ms = sorted(ours.taken)[len(ours.taken) * 99 // 100] * 1000
    return [
        _figure(what, median(ours.rates), "commits/s", goal=COMMITS_PER_S),
        _figure(
            what, median(ours.rates), "commits/s", peer="Kafka", peer_value=their_rate, goal=1.0
        ),
        _figure(f"{what}: CPU of a commit", cpu_us, "µs", peer="Kafka", peer_value=their_cpu_us),
        _figure(f"{what}: 99th percentile", slow_ms, "ms"),
    ]


async def _storm(committers: Sequence[Committer], seconds: float) -> list[float]:
    """Return how long each commit took."""
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def commits(committer: Committer, number: int) -> None:
        frame = _commit(committer, number)
        while (began := time.monotonic()) < end:
            answer = await committer.line.ask(frame)
            assert answer[_CODE] == b"\0\0", answer
            taken.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        for number, committer in enumerate(committers):
            tasks.create_task(commits(committer, number))
    return taken


def _commit(committer: Committer, number: int) -> bytes:
    module = schema(*_COMMIT).request_module
    partition = entity(
        module,
        "OffsetCommitRequestPartition",
        partition_index=number % PARTITIONS,
        committed_offset=1_000_000 + number,
        committed_leader_epoch=0,
        committed_metadata="",
    )
    topic = entity(module, "OffsetCommitRequestTopic", name=TOPIC, partitions=(partition,))
    request = entity(
        module,
        "OffsetCommitRequest",
        group_id=committer.group_id,
        generation_id_or_member_epoch=committer.epoch,
        member_id=committer.member_id,
        topics=(topic,),
    )
    return encode_request(*_COMMIT, 1, request)


def _figure(
    name: str,
    value: float,
    unit: str,
    *,
    goal: float | None = None,
    peer: str = "",
    peer_value: float | None = None,
) -> Figure:
    return Figure(
        part=PART, name=name, value=value, unit=unit, goal=goal, peer=peer, peer_value=peer_value
    )
