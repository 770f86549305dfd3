"""Test it with a real broker and a new topic for each test, without a container or a mock."""

import json

from app import total_orders  # type: ignore[import-not-found]  # beside this file

from lakehead.broker.testing import LakeheadBroker


def order(customer: str, cents: int) -> str:
    return json.dumps({"customer": customer, "cents": cents})


def test_totals_grow(lakehead_broker: LakeheadBroker, lakehead_topic: str) -> None:
    totals = lakehead_broker.create_topic("totals")
    lakehead_broker.produce(lakehead_topic, [order("ann", 5), order("bob", 7), order("ann", 1)])
    total_orders(lakehead_broker.bootstrap_servers, lakehead_topic, totals, orders=3)
    records = lakehead_broker.records(totals, at_least=3)
    assert [(r.key, r.value) for r in records] == [(b"ann", b"5"), (b"bob", b"7"), (b"ann", b"6")]


def test_orders_survive_a_broker_that_dies(lakehead_brokers) -> None:  # type: ignore[no-untyped-def]
    broker = lakehead_brokers()
    orders, totals = broker.create_topic("orders"), broker.create_topic("totals")
    broker.produce(orders, [order("ann", 5)])
    broker.kill()
    broker.start()
    total_orders(broker.bootstrap_servers, orders, totals, orders=1)
    assert [record.value for record in broker.records(totals, at_least=1)] == [b"5"]
