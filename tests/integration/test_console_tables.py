"""Tables in the console of a node that keeps them: their state, dead letters, and a replay."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.integration.test_console import LIMIT_S, Site, started

TABLE_S = 60.0
WRITES = (
    *("--console.writes", "true"),
    *("--maintain.tables", "true", "--maintenance.interval.ms", "200"),
)
PREFIX = "lakehead.table."
DECLARED = {
    f"{PREFIX}enable": "true",
    f"{PREFIX}value.format": "json",
    f"{PREFIX}schema": "id int, city string",
    f"{PREFIX}on.error": "dead_letter",
    f"{PREFIX}freshness.ms": "1000",
}


def wait_for(site: Site, path: str, text: str) -> str:
    deadline = time.monotonic() + TABLE_S
    while text not in (body := site.get(path).body):
        assert time.monotonic() < deadline, body
        time.sleep(0.2)
    return body


def post(site: Site, path: str, origin: str = "", **fields: str) -> int:
    request = urllib.request.Request(f"{site.url}{path}", urlencode(fields).encode())
    request.add_header("Origin", origin or site.url)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


def test_dead_letters_are_looked_at_and_replayed_beside_the_process_of_tables(
    tmp_path: Path,
) -> None:
    for site in started(tmp_path, *WRITES):
        admin = AdminClient({"bootstrap.servers": site.broker.bootstrap})
        admin.create_topics([NewTopic("sales", 1, config=DECLARED)])["sales"].result(LIMIT_S)
        producer = Producer({"bootstrap.servers": site.broker.bootstrap})
        for number in (1, 3_000_000_000, 2):
            producer.produce("sales", json.dumps({"id": number, "city": f"c{number}"}))
        assert producer.flush(LIMIT_S) == 0

        letters = "/console/dead-letters?name=sales"
        table = wait_for(site, "/console/table?name=sales", letters)
        assert "materialize" in table
        assert "0: 0 to 3" in table
        assert "id int, city string" in table
        status = json.loads(site.get("/console/table-status").body)["tables"][0]
        assert (status["name"], status["dead_letters"]) == ("sales", 1)
        shown = site.get(letters).body
        assert "misfit (1)" in shown
        assert "c3000000000" in shown
        assert "c3000000000" not in site.get(f"{letters}&class=malformed").body

        path = "/console/replay?name=sales"
        assert post(site, path, "http://evil.example", action="count") == 403
        assert post(site, path, action="replay", confirm="sale") == 400
        assert post(site, "/console/tables", action="replay") == 405
        wider = ConfigEntry(
            f"{PREFIX}schema",
            "id bigint, city string",
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource("topic", "sales", incremental_configs=[wider])
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(LIMIT_S)
        assert post(site, path, action="replay", confirm="sales") == 200
        assert "<dt>replayed</dt><dd>1</dd>" in wait_for(site, path, "replayed")
        wait_for(site, letters, "None.")
        producer.produce("sales", json.dumps({"id": 4, "city": "later"}))
        assert producer.flush(LIMIT_S) == 0
        wait_for(site, "/console/table?name=sales", "0: 3 to 4")


def test_a_console_that_only_reads_replays_nothing(tmp_path: Path) -> None:
    for site in started(tmp_path):
        admin = AdminClient({"bootstrap.servers": site.broker.bootstrap})
        admin.create_topics([NewTopic("sales", 1, config=DECLARED)])["sales"].result(LIMIT_S)
        assert site.get("/console/replay?name=sales").status == 403
        assert post(site, "/console/replay?name=sales", action="replay", confirm="sales") == 403
        assert site.get("/console/table?name=other").status == 404
