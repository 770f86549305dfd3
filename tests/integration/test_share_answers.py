"""A node has the conversation about share groups that Kafka 4.2 had."""

import asyncio
import json

from tests.integration.test_node_protocol import running
from tests.support.share_conversation import RECORDED, conversation

LIMIT_S = 60


async def test_a_node_answers_about_share_groups_as_kafka_did() -> None:
    told = json.loads(RECORDED.read_text())
    async with running() as node, asyncio.timeout(LIMIT_S):
        heard = await conversation(node.advertised_port)
    assert heard == told
    assert len(told) > 50
