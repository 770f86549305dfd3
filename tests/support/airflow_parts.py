"""An Airflow of several schedulers and triggerers on one database: each part is a process of its
own, as on hosts that each run one.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lakehead.broker.cli.demonstration.airflow_home import USER, AirflowHome, free_port
from lakehead.broker.cli.demonstration.airflow_process import end_leftovers
from tests.changes.postgres import Postgres
from tests.support.airflow_rig import ROOT, AirflowClient
from tests.support.waiting import wait_until

AIRFLOW = Path(sys.executable).parent / "airflow"
_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_TWICE = ("scheduler-1", "scheduler-2", "triggerer-1", "triggerer-2")
_READY_S = 300.0
_STOP_S = 60.0
_SETTINGS = {
    # A part that is killed is noticed soon, and its tasks are tried again soon.
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
    "SCHEDULER__PARSING_PRE_IMPORT_MODULES": "False",
}


class Parts:
    """The processes of an Airflow, by names such as `scheduler-1`."""

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self._environment = dict(environment)
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a part in a session of its own."""
        kind = name.rstrip("-0123456789")
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [AIRFLOW, kind],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pid(self, name: str) -> int:
        """Return the process id of a part."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """End a part and all that it has started by SIGKILL, as when its host is gone."""
        process = self._processes.pop(name)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()

    def said(self) -> str:
        """Return the last lines of each part."""
        logs = self._logs.glob("*.log")
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def stop(self) -> None:
        """End all parts, in any way."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def is_well(url: str, *parts: str) -> bool:
    """Return true if parts of an Airflow say that they are; all of them if none is named."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as answer:
            health = json.load(answer)
    except OSError:
        return False
    return all(health.get(one, {}).get("status") == "healthy" for one in parts or _PARTS)


@contextmanager
def airflow_parts(
    folder: Path, cluster: Path, *, database: Postgres, dags: Path, variable: Mapping[str, Any]
) -> Iterator[tuple[Parts, AirflowClient]]:
    """Run an Airflow of two schedulers and two triggerers on a database of a PostgreSQL; yield its
    parts and its API once all are well.
    """
    folder.mkdir()
    home = AirflowHome(folder=folder, dags=dags, port=free_port(0))
    given = home.environment(
        os.environ,
        connection={"conn_type": "lakehead", "extra": {"path": f"file:{cluster}"}},
        variables={"lakehead_dags": variable},
        keeps_settings=False,
    )
    given |= {f"AIRFLOW__{name}": value for name, value in _SETTINGS.items()}
    given |= {
        "PYTHONPATH": str(ROOT),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://postgres@/airflow?host={database.folder}",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(32),
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
    }
    database.query("CREATE DATABASE airflow")
    word = home.password()
    migrated = subprocess.run(
        [AIRFLOW, "db", "migrate"], env=given, capture_output=True, text=True, check=False
    )
    assert migrated.returncode == 0, migrated.stderr
    parts = Parts(given, folder)
    try:
        parts.start("api-server")
        assert wait_until(lambda: is_well(home.url, "metadatabase"), _READY_S), parts.said()
        for name in ("dag-processor", *_TWICE):
            parts.start(name)
        assert wait_until(lambda: is_well(home.url), _READY_S), parts.said()
        yield parts, AirflowClient(home.url, USER, word, folder / "scheduler-1.log")
    finally:
        parts.stop()
        end_leftovers(folder)
