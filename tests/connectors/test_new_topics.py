"""A topic that was made a moment ago, whose leader clients do not know yet, can be used."""

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.connectors.runtime.interfaces import TopicPartition
from lakehead.connectors.runtime.kafka_clients import Cluster
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.xdist_group("connectors")  # they share a broker

TOPICS = 12
"""A leader is missing in the first response for more than every second topic."""


def test_offsets_of_a_topic_that_is_being_made(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for number in range(TOPICS):
        topic = f"just-made-{number}"
        cluster = Cluster({"bootstrap.servers": broker.bootstrap})
        assert topic not in cluster.topics()
        made = admin.create_topics([NewTopic(topic, 1, 1)])[topic]
        while topic not in cluster.topics():
            pass  # librdkafka keeps for minutes that there is no leader
        place = TopicPartition(topic, 0)
        assert cluster.ends([place]) == {place: (0, 0)}
        made.result()
