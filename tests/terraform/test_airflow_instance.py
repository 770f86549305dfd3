"""Airflow as its instance runs it: the script and the commands of its units, with the environment
that they are given, in a folder of this machine.

Slow: `make airflow-test`.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lakehead.broker.cli.demonstration.airflow_home import free_port
from tests.support.airflow_parts import AIRFLOW, is_well
from tests.support.airflow_rig import ROOT, AirflowClient
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until
from tests.terraform.airflow_user_data import environment, files_written

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(900)]

DAGS = {"schedules": {path.stem: None for path in (ROOT / "dags").glob("lakehead_*.py")}}


@contextmanager
def part(name: str, surroundings: dict[str, str], log: Path) -> Iterator[None]:
    """Run a part of Airflow as airflow@.service does."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [AIRFLOW, name],
            env=surroundings,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def known(client: AirflowClient) -> set[str]:
    return {one["dag_id"] for one in client.ask("/api/v2/dags?limit=100")["dags"]}


def test_airflow_runs_as_its_instance_runs_it(tmp_path: Path) -> None:
    store, home, port = tmp_path / "store", tmp_path / "home", str(free_port(0))
    write_topic(store, "orders", {0: [b'{"id": 1}']})
    home.mkdir()
    given = environment(
        {
            "local.connection_uri": f"lakehead://10.42.0.10:9092/?path=file%3A{store}",
            'replace(var.host.dags, "\'", "\\\\u0027")': json.dumps(DAGS),
            "var.host.port": port,
            "var.host.parallelism": "2",
            "data.aws_region.current.name": "us-east-1",
            "var.store": "s3://lake-bucket/lakehead",
            "1": "1",
        }
    )
    assert given["AIRFLOW__API__HOST"] == "0.0.0.0"
    given = {name: value.replace("/var/lib/airflow", str(home)) for name, value in given.items()}
    given |= {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
    }
    script = files_written()["/usr/local/sbin/airflow-setup"]["content"]
    script = script.replace("/opt/airflow/bin/airflow", str(AIRFLOW))
    subprocess.run(["sh", "-c", script], env=given, check=True, timeout=300)
    keys = dict(line.split("=", 1) for line in (home / "keys.env").read_text().splitlines())
    word = json.loads((home / "passwords.json").read_text())["admin"]
    target = files_written()["/etc/systemd/system/airflow.target"]["content"]
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        for name in re.findall(r"airflow@([a-z-]+)\.service", target):
            stack.enter_context(part(name, given | keys, tmp_path / f"{name}.log"))
        assert wait_until(lambda: is_well(url), 300)
        client = AirflowClient(url, "admin", word, tmp_path / "scheduler.log")
        assert wait_until(lambda: known(client) == set(DAGS["schedules"]), 300)
        assert client.ask("/api/v2/importErrors")["total_entries"] == 0
        report = client.succeeds("lakehead_verify")
        assert client.result(report, "verify.summary")["damages_count"] == 0
