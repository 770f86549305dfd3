"""A storm of offset commits on one node: many consumers, each with one commit on its way."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.apache_kafka.server import kafka_server
from bench.cluster.load import make_topic
from bench.coordination._members import Line, coordinated
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
MEASURED_S, WARM_S = 15.0, 3.0
COMMITS_PER_S = 5000.0
_COMMIT = (8, 9)
_CODE = slice(-5, -3)
"""Place of the error code in a response about one partition."""


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure commits a second, and how long one takes then; of Apache Kafka too where it is."""
    for name in ("lakehead", "kafka"):
        (folder / name).mkdir()
    ours = await _measured(lakehead_server(folder / "lakehead"), quick)
    try:
        theirs = (await _measured(kafka_server(folder / "kafka"), quick)).commits_per_s
    except MissingTool:
        theirs = None
    what = f"{CONSUMERS} consumers"
    return [
        _figure(what, ours.commits_per_s, "commits/s", goal=COMMITS_PER_S),
        _figure(what, ours.commits_per_s, "commits/s", peer="Kafka", peer_value=theirs),
        _figure("CPU of a commit", ours.cpu_us, "µs"),
        _figure("99th percentile", ours.slow_ms, "ms"),
    ]


class _Measured(NamedTuple):
    commits_per_s: float
    cpu_us: float
    slow_ms: float


async def _measured(server: ServerProcess, quick: bool) -> _Measured:
    with server:
        await coordinated(server.port)
        make_topic(server.bootstrap, TOPIC, PARTITIONS)
        lines = [await Line.to(server.port) for _ in range(CONSUMERS)]
        await _storm(lines, 1.0 if quick else WARM_S)
        began, used = time.monotonic(), server.usage().cpu_seconds
        taken = await _storm(lines, 3.0 if quick else MEASURED_S)
        spent = time.monotonic() - began
        used = server.usage().cpu_seconds - used
        for line in lines:
            line.close()
    taken.sort()
    slow_s = taken[len(taken) * 99 // 100]
    return _Measured(len(taken) / spent, used / len(taken) * 1e6, slow_s * 1000)


async def _storm(lines: Sequence[Line], seconds: float) -> list[float]:
    """Return how long each commit took."""
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def commits(line: Line, number: int) -> None:
        frame = _commit(number)
        while (began := time.monotonic()) < end:
            answer = await line.ask(frame)
            assert answer[_CODE] == b"\0\0", answer
            taken.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        for number, line in enumerate(lines):
            tasks.create_task(commits(line, number))
    return taken


def _commit(number: int) -> bytes:
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
        group_id=f"group-{number}",
        generation_id_or_member_epoch=-1,
        member_id="",
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
