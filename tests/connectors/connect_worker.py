"""Kafka Connect's own distributed worker, from its Maven artefacts, and its REST API."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.apache_kafka.jars import connect_jars_directory
from bench.apache_kafka.tools import QUICK_START
from bench.process import ServerFailed, ServerProcess, free_port

_ANSWER_S = 30.0
_NOT_YET = {404, 409, 500}
"""Told while a worker reads its topics and rebalances."""


class ConnectWorker:
    """One worker over many lives: `process` is killed and started again."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._port = free_port()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect-cluster",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "offset.storage.partitions": "3",
            "status.storage.topic": "connect-status",
            "status.storage.partitions": "2",
            **{f"{one}.storage.replication.factor": "1" for one in ("config", "offset", "status")},
            "offset.flush.interval.ms": "500",
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "0",
            # Of 3 s by default; a task of an exactly-once source fails for good beyond it.
            "worker.sync.timeout.ms": "60000",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "service_load",
        }
        properties = folder / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.process = ServerProcess(
            "Kafka Connect",
            [
                *("java", *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                *("-cp", f"{connect_jars_directory()}/*"),
                *("org.apache.kafka.connect.cli.ConnectDistributed", str(properties)),
            ],
            port=self._port,
            log=folder / "connect.log",
        )

    def get(self, path: str) -> Any:
        """GET of the REST API; None while the worker has no answer yet."""
        return self._asked("GET", path, None)

    def put_config(self, name: str, config: Mapping[str, str]) -> Any:
        """Create or change a connector; None while the worker has no answer yet."""
        return self._asked("PUT", f"/connectors/{name}/config", config)

    def states(self, name: str) -> list[str]:
        """The states of a connector and its tasks."""
        found = self.get(f"/connectors/{name}/status")
        if found is None:
            return []
        return [found["connector"]["state"], *(task["state"] for task in found["tasks"])]

    def _asked(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _NOT_YET:
                    raise ServerFailed(f"{method} {path}: {error.read()!r}") from None
            return None
        except (OSError, ValueError):
            return None
