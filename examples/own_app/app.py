"""A program of one's own: reads orders, and produces the total of each customer as it grows."""

import json
from collections import defaultdict

from confluent_kafka import Consumer, Producer


def total_orders(bootstrap_servers: str, source: str, target: str, *, orders: int) -> None:
    """Handle `orders` orders of topic `source`; totals go to topic `target`, by customer."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "totals",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    totals: dict[str, int] = defaultdict(int)
    consumer.subscribe([source])
    try:
        while orders:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            order = json.loads(message.value() or b"{}")
            totals[order["customer"]] += order["cents"]
            producer.produce(target, str(totals[order["customer"]]), order["customer"])
            orders -= 1
        producer.flush()
        consumer.commit()
    finally:
        consumer.close()
