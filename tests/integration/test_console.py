"""The console of a node: its pages, what access rules let a viewer see, and a real browser."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from bench.process import free_port
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.chromium import chromium, opened_page

MARKUP = '<script>document.title="taken"</script><img src=x onerror="document.title=1">'
PASSWORD = "ann-s3cret"
LIMIT_S = 30.0


class Response(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]


class Site:
    """The console of a broker."""

    def __init__(self, broker: BrokerProcess, port: int) -> None:
        self.broker = broker
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, *, user: str = "", host: str = "", method: str = "GET") -> Response:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        if user:
            credentials = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        if host:
            request.add_header("Host", host)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as found:
                return Response(found.status, found.read().decode(), dict(found.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.read().decode(), dict(error.headers))


def started(folder: Path, *flags: str) -> Iterator[Site]:
    port = free_port()
    broker = BrokerProcess(folder, (*HASTY, "--metrics.port", str(port), *flags))
    broker.start()
    try:
        yield Site(broker, port)
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    for one in started(tmp_path_factory.mktemp("console")):
        fill(one.broker.bootstrap)
        yield one


def fill(bootstrap: str) -> None:
    """Topics orders (with records) and payments (a declared table); group billing at offset 2."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("orders", num_partitions=2),
        NewTopic("payments", num_partitions=1, config={"lakehead.table.enable": "true"}),
    ]
    for made in admin.create_topics(topics).values():
        made.result(LIMIT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(10):
        value = json.dumps({"id": number, "note": MARKUP})
        producer.produce("orders", value, f"key-{number}", partition=0, headers={"h": MARKUP})
    producer.produce("orders", b"\xff\x00", partition=1)
    producer.produce("payments", b"{}", partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    consumer.close()


def test_every_page_is_shown_and_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    pages = {
        "/console/": "Traffic",
        "/console/topics": "orders",
        "/console/topics/orders": "High watermark",
        "/console/topics/orders/records": "key-9",
        "/console/groups": "billing",
        "/console/group?id=billing": "orders",
        "/console/tables": "payments",
        "/console/jobs": "Last commit of each kind of job",
        "/console/connectors": "could not use",
        "/console/log": "CreateTopic",
        "/console/log/1": "records",
    }
    for path, text in pages.items():
        found = site.get(path)
        assert found.status == 200, path
        assert text in found.body, path
        assert "http://" not in found.body, path
        assert "default-src 'self'" in found.headers["Content-Security-Policy"]
        assert found.headers["Cache-Control"] == "no-store"
    assert "Traffic" in site.get("/").body
    assert "__consumer_offsets" not in site.get("/console/topics").body
    assert "__consumer_offsets" in site.get("/console/topics?internal=1").body


def test_records_are_found_by_offset_time_and_text(site: Site) -> None:
    base = "/console/topics/orders/records"
    assert site.get(f"{base}?offset=3&limit=2").body.count('<tr id="o') == 2
    assert 'id="o3"' in site.get(f"{base}?offset=3&limit=2").body
    assert 'id="o0"' in site.get(f"{base}?time=2020-01-01T00:00&offset=7").body
    assert "No record" in site.get(f"{base}?time=2999-01-01T00:00").body
    found = site.get(f"{base}?offset=0&q=key-7").body
    assert found.count('<tr id="o') == 1
    assert 'id="o7"' in found
    assert "ff 00" in site.get(f"{base}?partition=1").body


def test_markup_in_records_is_text(site: Site) -> None:
    body = site.get("/console/topics/orders/records").body
    assert "<script>document" not in body
    assert "<img" not in body
    assert "&lt;script&gt;" in body


def test_lag_and_traffic_are_json(site: Site) -> None:
    assert json.loads(site.get("/console/lag?id=billing").body)["lag"] == 8
    found = json.loads(site.get("/console/live").body)
    assert [node["state"] for node in found["nodes"]] == ["live"]
    assert found["dollars_an_hour"] >= 0
    assert sum(found["latencies"]["counts"]["produce"]) > 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/nothing", 404),
        ("/console/topics/none", 404),
        ("/console/topics/orders/records?partition=9", 404),
        ("/console/topics/orders/records?offset=x", 400),
        ("/console/topics/orders/records?offset=-1", 400),
        ("/console/topics/orders/records?offset=99999999999999999999999", 400),
        ("/console/topics/orders/records?time=soon", 400),
        ("/console/group?id=nobody", 404),
        ("/console/group", 404),
        ("/console/log/999999", 404),
        ("/console/static/../application.py", 404),
        ("/console/static/uPlot.LICENSE", 404),
    ],
)
def test_a_wrong_address_is_an_error_of_one_line(site: Site, path: str, status: int) -> None:
    found = site.get(path)
    assert found.status == status
    assert found.body.count('role="alert"') == 1
    assert "Traceback" not in found.body


def test_the_console_takes_no_changes_and_no_request_by_a_foreign_name(site: Site) -> None:
    assert site.get("/console/", method="POST").status == 405
    assert site.get("/console/", method="HEAD").status == 200
    assert site.get("/console/topics/orders/records", host="evil.example").status == 403


def test_a_viewer_sees_what_the_access_rules_allow(tmp_path: Path) -> None:
    flags = (
        *("--authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        *("--super.users", "User:ANONYMOUS;User:root"),
    )
    for site in started(tmp_path, *flags):
        fill(site.broker.bootstrap)
        allow_ann(site.broker.bootstrap)

        refused = site.get("/console/")
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic")
        assert site.get("/console/topics", user="bob").status == 401

        assert site.get("/console/", user="ann").status == 403
        assert site.get("/console/log", user="ann").status == 403
        assert site.get("/console/live", user="ann").status == 403
        topics = site.get("/console/topics", user="ann").body
        assert "orders" in topics
        assert "payments" not in topics
        assert site.get("/console/topics/payments", user="ann").status == 404
        assert "payments" not in site.get("/console/tables", user="ann").body
        topic = site.get("/console/topics/orders", user="ann").body
        assert "do not let you see them" in topic
        assert "do not let you read them" in topic
        assert site.get("/console/topics/orders/records", user="ann").status == 403
        assert "billing" not in site.get("/console/groups", user="ann").body
        assert site.get("/console/group?id=billing", user="ann").status == 403

        everything = site.get("/console/topics/orders/records", user="root")
        assert everything.status == 200
        assert "key-9" in everything.body
        assert site.get("/console/", user="root").status == 200


def allow_ann(bootstrap: str) -> None:
    """Add users ann, who may describe topic orders, and root."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for name in ("ann", "root"):
        upsertion = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([upsertion]).values():
            done.result(LIMIT_S)
    binding = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    for done in admin.create_acls([binding]).values():
        done.result(LIMIT_S)


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_browser_draws_the_charts_and_runs_nothing_of_a_record(
    site: Site, tmp_path: Path
) -> None:
    with opened_page(tmp_path) as page:
        page.open(f"{site.url}/console/")
        page.wait("document.querySelectorAll('#traffic-chart canvas').length === 1", LIMIT_S)
        page.wait("document.querySelector('#node-rows').innerText.includes('live')", LIMIT_S)
        page.wait("document.querySelector('#cost-hour').innerText.startsWith('$')", LIMIT_S)
        page.open(f"{site.url}/console/group?id=billing")
        page.wait("document.querySelectorAll('#lag-chart canvas').length === 1", LIMIT_S)
        page.open(f"{site.url}/console/topics/orders/records")
        page.wait("document.title.startsWith('Records of orders')", LIMIT_S)
        assert "<script>" in page.text()
        links = "[...document.querySelectorAll('header nav a')].map((a) => a.innerText).join()"
        assert page.run(links) == "Cluster,Topics,Groups,Tables,Jobs,Connectors,Metadata log"
