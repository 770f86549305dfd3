"""Values in the console, decoded by a topic's declaration and by a schema registry."""

import io
import json
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import urlencode

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.test_console import LIMIT_S, PASSWORD, Site, started
from tests.support.schema_registry import Schemas, serve_schemas

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": "string"}],
}


def datum(number: int) -> bytes:
    target = io.BytesIO()
    row = {"id": number, "city": f"city-{number}"}
    fastavro.schemaless_writer(target, fastavro.parse_schema(ORDER), row)
    return target.getvalue()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node beside a registry, in whose roles ann reads the schemas of flights alone."""
    folder = tmp_path_factory.mktemp("values")
    roles = folder / "roles"
    roles.write_text("ann:read:flights-*\nroot:read:*\n")
    users = folder / "users"
    users.write_text(f"users=ann:{PASSWORD},root:{PASSWORD}\n")
    with serve_schemas() as (url, schemas):
        flags = (
            *("--registry.port", url.rpartition(":")[2], "--registry.roles", str(roles)),
            *("--metrics.users", f"${{file:{users}:users}}"),
        )
        for one in started(folder, *flags):
            fill(one.broker.bootstrap, url, schemas)
            yield one


def fill(bootstrap: str, registry: str, schemas: Schemas) -> None:
    """Topic declared has bare Avro, flights and orders name the schemas of a registry."""
    prefix = "lakehead.table."
    bare = {f"{prefix}value.format": "avro", f"{prefix}schema": json.dumps(ORDER)}
    nodes = f"{registry},{registry}"  # a registry of several nodes
    framed = {f"{prefix}value.format": "avro", f"{prefix}schema.registry.url": nodes}
    topics = {"declared": bare, "orders": framed, "flights": {}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 1, config=one) for name, one in topics.items()])
    for one in made.values():
        one.result(LIMIT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(3):
        producer.produce("declared", datum(number) if number != 1 else b"\xff\xff", f"k{number}")
    schema = {"schema": json.dumps(ORDER)}
    flights, orders = (
        schemas.register("flights-value", schema),
        schemas.register("orders-value", {"schema": json.dumps({**ORDER, "doc": "other"})}),
    )
    frame = b"\0" + flights.to_bytes(4, "big")
    for number in range(3):
        producer.produce("flights", frame + datum(number), frame + datum(number))
    producer.produce("flights", b"plain")
    producer.produce("orders", b"\0" + orders.to_bytes(4, "big") + datum(7))
    assert producer.flush(LIMIT_S) == 0


def records(site: Site, topic: str, user: str = "root", **query: str) -> dict[int, str]:
    """The rows of a page by offset, as text."""
    path = f"/console/topics/{topic}/records?{urlencode({'offset': 0, **query})}"
    deadline = time.monotonic() + LIMIT_S
    while "is starting" in (found := site.get(path, user=user)).body:
        assert time.monotonic() < deadline
    assert found.status == 200
    rows = re.findall(r'<tr id="o(\d+)">(.*?)</tr>', found.body, re.DOTALL)
    return {int(offset): unescape(row) for offset, row in rows}


def test_a_declared_schema_decodes_values_and_a_bad_one_leaves_its_neighbours(site: Site) -> None:
    found = records(site, "declared")
    assert '"city": "city-0"' in found[0]
    assert "Not decoded: malformed" in found[1]
    assert "ff ff" in found[1]
    assert '"city": "city-2"' in found[2]
    assert list(records(site, "declared", field="id", value="2")) == [2]
    assert list(records(site, "declared", q="city-0")) == [0]
    assert list(records(site, "declared", key="k2")) == [2]


def test_a_registry_decodes_keys_and_values_that_name_its_schemas(site: Site) -> None:
    found = records(site, "flights", user="ann")
    assert found[1].count('"city": "city-1"') == 2
    assert "AVRO schema" in found[1]
    assert "plain" in found[3]
    assert "Not decoded" not in found[3]
    assert list(records(site, "flights", user="ann", key='{"id":2,"city":"city-2"}')) == [2]


def test_a_viewer_without_a_role_on_the_subject_sees_no_decoded_value(site: Site) -> None:
    assert "city-7" in records(site, "orders")[0]
    assert "do not let you read schema" in records(site, "orders", user="ann")[0]
