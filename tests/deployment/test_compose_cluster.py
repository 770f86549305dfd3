"""The brokers of infra/compose are one cluster: as processes here, with their settings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from bench.process import free_port
from bench.s3_server import S3Server, running_server
from tests.deployment.tools import ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_WAIT_S = 60
_RECORDS = 100


@contextmanager
def brokers(server: S3Server, folder: Path, first_port: int) -> Iterator[list[str]]:
    """Run the brokers, with names and ports of one machine for those of containers; yield the
    addresses of their pages.
    """
    services = yaml.safe_load((ROOT / "infra/compose/compose.yaml").read_text())["services"]
    pages = []
    with ExitStack() as stack:
        for number in range(3):
            service = services[f"broker-{number}"]
            page, between = free_port(), free_port()
            changes = {
                "http://s3:7070": server.endpoint,
                f"broker-{number}:29092": f"127.0.0.1:{between}",
                "0.0.0.0:29092": f"127.0.0.1:{between}",
                "0.0.0.0:9092": f"127.0.0.1:{first_port + number}",
                "{9092+": f"{{{first_port}+",
                "0.0.0.0": "127.0.0.1",
            }
            text = yaml.safe_dump(service["environment"] | {"LAKEHEAD_METRICS_PORT": str(page)})
            for old, new in changes.items():
                text = text.replace(old, new)
            given = yaml.safe_load(text)
            place = folder / str(number)
            place.mkdir()
            log = stack.enter_context((place / "log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "lakehead", *service["command"]],
                cwd=place,
                env={**os.environ, **given, "AWS_ALLOW_HTTP": "true"},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            stack.callback(process.wait, _WAIT_S)
            stack.callback(process.terminate)
            pages.append(f"http://127.0.0.1:{page}")
        yield pages


def is_ready(page: str) -> bool:
    try:
        with urlopen(f"{page}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_clients_outside_reach_every_broker(tmp_path: Path) -> None:
    first = free_port()
    bootstrap = {"bootstrap.servers": f"localhost:{first}"}
    with running_server(tmp_path / "s3") as server, brokers(server, tmp_path, first) as pages:
        assert wait_until(lambda: all(map(is_ready, pages)), _WAIT_S)
        producer = Producer(bootstrap)
        wanted = {f"localhost:{first + number}" for number in range(3)}

        def knows_all() -> bool:
            listed = producer.list_topics(timeout=_WAIT_S).brokers.values()
            return {f"{one.host}:{one.port}" for one in listed} == wanted

        assert wait_until(knows_all, _WAIT_S)
        for number in range(_RECORDS):
            producer.produce("orders", str(number).encode())
        assert producer.flush(_WAIT_S) == 0
        consumer = Consumer(bootstrap | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        values = consumer.consume(_RECORDS, _WAIT_S)
        consumer.close()
        assert sorted(int(one.value() or b"-1") for one in values) == list(range(_RECORDS))
