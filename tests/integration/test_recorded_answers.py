"""What Kafka 4.2 answered to seeded streams of requests: a node answers the same.

The answers are recorded by `python -m tests.differential.requests --seed N --record
tests/differential/recorded/N.json`, and have to be recorded anew when the draws change.
"""

import random
from pathlib import Path

import pytest

from lakehead.broker.node import start_node
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.settings import Settings
from tests.differential.brokers import CHANGING, Broker
from tests.differential.stream import Report, chances_of, follow, recording, requests_of
from tests.support.node_client import close_clients

RECORDED = Path(__file__).parents[1] / "differential" / "recorded"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
async def test_a_node_answers_as_kafka_did(name: str, tmp_path: Path) -> None:
    told = recording((RECORDED / f"{name}.json").read_text())
    settings = Settings(
        data=str(tmp_path),
        port=0,
        node_id=1,
        num_partitions=4,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
        transaction_state_log_num_partitions=2,
    )
    report = Report()
    node = await start_node(settings, rng=random.Random(3))
    try:
        proof = NodeProof(secret=node.state.node_secret, to_node=node.node_id)
        broker = await Broker.connect("Lakehead", node.advertised_port, proof)
        await broker.wait_coordinated()
        chances = chances_of(told.seed, told.number, told.versions)
        requests = requests_of(chances, len(told.steps))
        for request, step in zip(requests, told.steps, strict=True):
            answer = await broker.ask(request)
            if request.key in CHANGING:
                await broker.learn_topics(chances.prefix)
            follow(chances, request, step)
            report.compare(request, step.answer, answer)
    finally:
        await close_clients()
        await node.close()
    assert not report.unknown
    assert sum(report.asked.values()) == len(told.steps) > 10
