"""The console of a node: its pages, what access rules let a viewer see, and a real browser."""

import base64
import json
import os
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
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
from lakehead.broker.console.job_pages import status_of
from lakehead.connectors.connector import Connector
from lakehead.connectors.runtime.errors import BadInput
from lakehead.connectors.runtime.settings import load_settings
from lakehead.connectors.settings import ConnectorSettings
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.run_recorder import RunRecorder, recorded
from lakehead.storage.object_store import FileStore
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.chromium import chromium, opened_page
from tests.support.share_consumer_process import ShareConsumerProcess
from tests.support.share_group_configs import set_group_configs
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

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
        "/console/topics/orders/partitions/0": "Objects, the newest first",
        "/console/topics/orders/records": "key-9",
        "/console/groups": "billing",
        "/console/group?id=billing": "orders",
        "/console/tables": "payments",
        "/console/jobs": "Last commit of each kind of job",
        "/console/connectors": "could not use",
        "/console/log": "CreateTopic",
        "/console/log/1": "records",
        "/console/search?q=order": "1 topic",
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
        ("/console/topics/orders/partitions/9", 404),
        ("/console/topics/orders/partitions/-1", 404),
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


def test_names_are_found_by_a_part_of_them_in_any_letters(site: Site) -> None:
    found = site.get("/console/search?q=MENT").body
    assert "/console/topics/payments" in found
    assert "/console/topics/orders" not in found
    assert "/console/group?id=billing" in site.get("/console/search?q=BILL").body
    assert "Partitions" in site.get("/console/search?q=orders").body, "the page of this topic"
    assert json.loads(site.get("/console/suggest?q=r").body) == {"topics": ["orders"]}
    assert json.loads(site.get("/console/suggest").body) == {"topics": []}
    assert "Nothing that you may see" in site.get("/console/search?q=%3Cb%3E").body
    for page in ("search", "topics", "groups"):
        nothing = site.get(f"/console/{page}?q=%E2%80%AEgnp.exe").body
        assert "<q>\\u202egnp.exe</q>" in nothing, "the direction of text stays"


def test_a_topic_leads_to_its_partitions_objects_groups_and_table(site: Site) -> None:
    topic = site.get("/console/topics/orders").body
    assert 'href="/console/topics/orders/partitions/1"' in topic
    assert 'href="/console/group?id=billing"' in topic
    assert 'href="/console/table?name=payments"' in site.get("/console/topics/payments").body
    group = site.get("/console/group?id=billing").body
    assert "/console/topics/orders/records?partition=0&amp;offset=2" in group
    assert "billing" not in site.get("/console/topics/orders/partitions/1").body


def test_runs_of_jobs_are_shown_with_their_progress_and_their_end(site: Site) -> None:
    store = site.broker.folder / "data/store"
    command = ("verify", "--path", str(store), "--json")
    subprocess.run([sys.executable, "-m", "lakehead", *command], check=True, timeout=LIMIT_S)
    with pytest.raises(SettingsError), recorded_in(store, "import") as recorder:
        recorder.progress(1 << 20, 4 << 20)
        wait_until(lambda: "25 %" in site.get("/console/jobs").body, LIMIT_S)
        running = site.get("/console/jobs").body
        raise SettingsError("the source <b>closed</b> its connection")
    assert "25 %" in running
    assert "1.0 MiB of 4.0 MiB" in running
    assert wait_until(lambda: "closed" in site.get("/console/jobs").body, LIMIT_S)
    ended = site.get("/console/jobs").body
    assert "the source &lt;b&gt;closed" in ended
    assert ">succeeded<" in ended
    assert ">failed<" in ended
    listed = subprocess.run(
        [sys.executable, "-m", "lakehead", "runs", "--path", str(store), "--json"],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["job"], row["state"]) for row in rows] == [
        ("import", "failed"),
        ("verify", "succeeded"),
    ]


def test_the_lag_of_a_share_group_is_that_of_its_clients(site: Site) -> None:
    bootstrap, group = site.broker.bootstrap, "packers"
    create_topic(bootstrap, "parcels", 1)
    set_group_configs(bootstrap, group)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100})

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce("parcels", str(number).encode())
        assert producer.flush(LIMIT_S) == 0

    def lag() -> int:
        found: int = json.loads(site.get(f"/console/lag?id={group}").body)["lag"]
        return found

    produce(range(50))
    taker = ShareConsumerProcess(bootstrap, group, "parcels")
    assert wait_until(lambda: len(taker.values) == 50, LIMIT_S)
    taker.close(LIMIT_S)
    assert wait_until(lambda: lag() == 0, LIMIT_S), "what was accepted is done"
    produce(range(50, 57))
    assert lag() == 7
    holder = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    holder.subscribe(["parcels"])
    held: list[Any] = []

    def has_taken() -> bool:
        held.extend(holder.poll(0.2) or ())
        return bool(held)

    assert wait_until(has_taken, LIMIT_S)
    assert lag() == 7, "records in flight are not done"
    rows = re.findall(r"<tr><th.*?parcels.*?</tr>", site.get(f"/console/group?id={group}").body)
    cells = [re.findall(r'class="number">(?:<a[^>]*>)?(\d+|-)', row) for row in rows]
    # Partition, start offset, done behind it, in flight, to be delivered again, end, lag.
    assert cells == [["0", "50", "0", "7", "0", "57", "7"]]
    holder.acknowledge(held[1])
    holder.commit_sync(LIMIT_S)
    assert wait_until(lambda: lag() == 6, LIMIT_S), "one behind the start offset is done"
    for message in (held[0], *held[2:]):
        holder.acknowledge(message)
    holder.close()
    assert wait_until(lambda: lag() == 0, LIMIT_S)
    produce(range(57, 60))

    def listed_lag() -> list[str]:
        body = site.get("/console/groups?q=packers").body
        return re.findall(r'class="number"[^>]*>([^<]+)</td>', body)

    assert wait_until(lambda: listed_lag() == ["3"], LIMIT_S), "with the next sample of lags"


def test_a_connector_shows_the_end_of_its_last_run_wherever_it_ran(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text\n1,a\n2,b\n")
    (tmp_path / "c.toml").write_text(
        f"""name = "lists"
kafka.bootstrap.servers = "{site.broker.bootstrap}"
[source]
type = "files"
path = "{folder}"
format = "csv"
[sink]
topic = "lists"
partitions = 1
"""
    )
    settings = load_settings(tmp_path / "c.toml", ConnectorSettings)

    def run() -> int:
        return Connector(settings, SystemClock(), name="c.toml").run().records

    def shown() -> str:
        return site.get("/console/connectors").body

    assert run() == 2
    assert wait_until(lambda: ">stopped<" in shown(), LIMIT_S)
    (folder / "b.csv").write_text("id,text\n3,<b>,too many\n")
    with pytest.raises(BadInput):
        run()
    assert wait_until(lambda: ">failed<" in shown(), LIMIT_S)
    assert "b.csv, line 2: 3 fields where there are 2 columns" in shown()
    assert f"process {os.getpid()}" in shown()
    starts = re.search(r'class="number">(\d+)</td><td class="end', shown())
    assert starts is not None
    assert starts[1] == "2"
    (folder / "b.csv").write_text("id,text\n3,c\n")
    assert run() == 1, "a status is not taken for a position"


def test_a_status_of_another_form_is_none() -> None:
    given = {"state": "RUNNING", "started_ms": 1, "updated_ms": 5, "starts": 2, "trace": ""}
    whole = given | {"worker_id": "h"}
    assert status_of(json.dumps(whole), 6)["state"] == "running"
    assert status_of(json.dumps(whole), 200_000)["state"] == "abandoned"
    for text in ("", "{", "[]", "1", json.dumps(given), json.dumps(whole | {"starts": "<b>"})):
        assert status_of(text, 6) == {}


def recorded_in(store: Path, job: str) -> AbstractContextManager[RunRecorder]:
    clock, rng = SystemClock(), random.Random(1)
    return recorded(lambda: FileStore(store), job, clock=clock, rng=rng, interval_s=0.05)


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
        assert "do not let you read its records" in topic
        assert site.get("/console/topics/orders/records", user="ann").status == 403
        assert "billing" not in site.get("/console/groups", user="ann").body
        assert site.get("/console/group?id=billing", user="ann").status == 403

        assert "payments" not in site.get("/console/search?q=p", user="ann").body
        assert json.loads(site.get("/console/suggest?q=a", user="ann").body) == {"topics": []}
        gone, hidden = (
            site.get(f"/console/topics/{name}/partitions/0", user="ann")
            for name in ("nothing", "payments")
        )
        assert gone.body.replace("nothing", "") == hidden.body.replace("payments", "")
        assert site.get("/console/jobs", user="ann").status == 403
        assert_names_of_topics_are_hidden_from_one_that_sees_the_cluster(site)

        everything = site.get("/console/topics/orders/records", user="root")
        assert everything.status == 200
        assert "key-9" in everything.body
        assert site.get("/console/", user="root").status == 200


def assert_names_of_topics_are_hidden_from_one_that_sees_the_cluster(site: Site) -> None:
    allow(site.broker.bootstrap, ResourceType.BROKER, "kafka-cluster", "ann")
    allow(site.broker.bootstrap, ResourceType.GROUP, "billing", "ann")
    allow(site.broker.bootstrap, ResourceType.GROUP, "both", "ann")
    consumer = Consumer({"bootstrap.servers": site.broker.bootstrap, "group.id": "both"})
    places = [TopicPartition("orders", 0, 4), TopicPartition("payments", 0, 0)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    with recorded_in(site.broker.folder / "data/store", "optimize") as recorder:
        recorder.failed("table payments: the lease of payments-0 is taken")
    assert site.get("/console/", user="ann").status == 200
    entries = [site.get(f"/console/log/{number}", user="ann") for number in range(40)]
    shown = "".join(one.body for one in entries if one.status == 200)
    assert "orders" in shown, "it may describe this one"
    paths = ("jobs", "live", "log", "groups", "group?id=both", "connectors", "lag?id=both&history=")
    for body in (shown, *(site.get(f"/console/{path}", user="ann").body for path in paths)):
        assert "payments" not in body
    assert json.loads(site.get("/console/lag?id=both&history=1", user="ann").body)["lag"] == 6
    assert json.loads(site.get("/console/lag?id=both&history=1", user="root").body)["lag"] == 7


def allow(bootstrap: str, kind: ResourceType, name: str, user: str) -> None:
    """Let a user describe something."""
    binding = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_acls([binding]).values():
        done.result(LIMIT_S)


def allow_ann(bootstrap: str) -> None:
    """Add users ann, who may describe topic orders, and root."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for name in ("ann", "root"):
        upsertion = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([upsertion]).values():
            done.result(LIMIT_S)
    allow(bootstrap, ResourceType.TOPIC, "orders", "ann")


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


HOSTILE = (
    '"><img src=x onerror="document.title=1">',
    "'-alert(1)-'",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "../../topics?q=<script>alert(1)</script>&x=%22",
    "a" * 200 + "\n\0",
)


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_browser_runs_nothing_of_names_that_clients_give(site: Site, tmp_path: Path) -> None:
    for name in HOSTILE:
        given = {"bootstrap.servers": site.broker.bootstrap, "group.id": name, "client.id": name}
        consumer = Consumer(given)
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        consumer.close()
    groups = [f"group?id={quote(name, safe='')}" for name in HOSTILE]
    searches = [f"search?q={quote(name, safe='')}" for name in HOSTILE]
    with opened_page(tmp_path) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCHED)
        for path in ("groups", "topics/orders", *groups, *searches):
            page.open(f"{site.url}/console/{path}")
            page.wait("document.readyState === 'complete' && !!window.seen", LIMIT_S)
            assert page.run("document.title.endsWith(' · Lakehead')"), path
            assert page.run("window.seen.join()") == "", path
            assert page.run("document.querySelectorAll('main script, main img').length") == 0
            assert "\u202e" not in page.text(), "the direction of text stays"
        page.open(f"{site.url}/console/groups")
        page.wait("document.querySelectorAll('tbody tr').length >= 7", LIMIT_S)
        page.run("history.length")
        link = "[...document.querySelectorAll('tbody a')].find((a) => a.innerText === 'billing')"
        page.run(f"{link}.click()")
        page.wait("document.title.startsWith('Group billing')", LIMIT_S)
        page.run("history.back()")
        page.wait("document.title.startsWith('Groups')", LIMIT_S)


_WATCHED = """
window.seen = [];
window.alert = () => window.seen.push("alert");
document.addEventListener("securitypolicyviolation", (one) => window.seen.push(one.blockedURI));
window.addEventListener("error", (one) => window.seen.push(String(one.message)));
"""


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_pages_fit_a_phone_and_show_times_of_the_viewer(site: Site, tmp_path: Path) -> None:
    wide = ("", "topics", "topics/orders", "topics/orders/partitions/0", "topics/orders/records")
    with opened_page(tmp_path) as page:
        metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        page.call("Emulation.setDeviceMetricsOverride", **metrics)
        page.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        for path in (*wide, "groups", "group?id=billing", "tables", "jobs", "connectors", "log"):
            page.open(f"{site.url}/console/{path}")
            page.wait("document.readyState === 'complete' && !!document.body", LIMIT_S)
            overflow = "document.documentElement.scrollWidth - window.innerWidth"
            assert page.run(overflow) <= 0, path
        page.open(f"{site.url}/console/topics/orders/records")
        page.wait("!!document.querySelector('time')", LIMIT_S)
        page.wait("document.querySelector('#zone').innerText.includes('Asia/')", LIMIT_S)
        shown, title = page.run(
            "(() => { const one = document.querySelector('time');"
            " return [one.innerText, one.title]; })()"
        )
        utc = datetime.fromisoformat(title.removesuffix(" UTC"))
        assert datetime.fromisoformat(shown) - utc == timedelta(hours=5, minutes=30)
        page.open(f"{site.url}/console/topics/orders/records?time=2026-11-27T20:00")
        page.wait("document.querySelector('#time-zone')?.innerText.startsWith('Asia/')", LIMIT_S)
        field = "document.querySelector('input[type=datetime-local]')"
        assert page.run(f"{field}.value") in {"2026-11-28T01:30", "2026-11-28T01:30:00"}
        page.run(f"{field}.value = '2026-11-28T02:00'; {field}.form.requestSubmit()")
        page.wait("location.search.includes('time=2026-11-27T20%3A30%3A00')", LIMIT_S)


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_page_is_used_by_keyboard_alone(site: Site, tmp_path: Path) -> None:
    with opened_page(tmp_path) as page:
        page.open(f"{site.url}/console/topics")
        page.wait("document.title.startsWith('Topics') && document.readyState === 'complete'", 60)

        def press(key: str, code: int, text: str = "") -> None:
            for kind in ("keyDown", "keyUp"):
                more = {"text": text} if text and kind == "keyDown" else {}
                page.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=code,
                    **more,
                )

        press("Tab", 9)
        assert page.run("document.activeElement.className") == "skip"
        press("/", 191, "/")
        assert page.run("document.activeElement.id") == "find"
        for letter in "orde":
            press(letter, ord(letter.upper()), letter)
        page.wait("document.querySelector('#suggestions option')?.value === 'orders'", LIMIT_S)
        press("Enter", 13, "\r")
        page.wait("document.title.startsWith('Names with orde')", LIMIT_S)
        assert page.run("location.search") == "?q=orde"
