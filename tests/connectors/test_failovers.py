"""The registry and Kafka Connect on a cluster whose nodes are killed, and restarted in turn.

`make connect-test` runs it (SLOW=1); CONNECT_SEED=n chooses other moments.
"""

import json
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.lakehead_cluster import LakeheadCluster
from bench.maven import MissingTool
from lakehead.connectors.runtime.kafka_clients import Cluster
from tests.connectors.connect_worker import ConnectWorker
from tests.connectors.test_registry_races import check_log
from tests.support.connect_runs import values
from tests.support.registry_process import RegistryProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("CONNECT_SEED", "1"))
WAIT_S = 180.0
SUBJECTS = 8
NO_LONGER_THERE = {40401, 40402, 40404, 40406}
FILES = "org.apache.kafka.connect.file.FileStream"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LakeheadCluster]:
    with LakeheadCluster(tmp_path, "--upload.age.ms", "200") as cluster:
        yield cluster


class RegistryUser:
    """Registers and deletes in subjects of its own, and schemas that all users have in common.

    Calls are repeated until one is answered: a call whose answer was lost may have been carried
    out. `versions` are those that must be there at the end.
    """

    def __init__(self, number: int, registries: list[RegistryProcess]) -> None:
        self.registries = registries
        self.rng = random.Random(f"{SEED} {number}")
        self.subjects = [f"user-{number}-{n}" for n in range(SUBJECTS)]
        self.versions: dict[str, dict[int, str]] = {name: {} for name in self.subjects}
        self.ids: list[tuple[str, int]] = []
        self.calls = 0

    def run(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            subject = self.rng.choice(self.subjects)
            if self.versions[subject] and self.rng.random() < 0.3:
                self.delete(subject, self.rng.choice(sorted(self.versions[subject])))
            else:
                self.register(subject, f"Common{self.rng.randrange(30)}")

    def register(self, subject: str, name: str) -> None:
        text = json.dumps({"type": "record", "name": name, "fields": []}, separators=(",", ":"))
        answer = self.answer("POST", f"/subjects/{subject}/versions", {"schema": text})
        self.ids.append((text, answer["id"]))
        found = self.answer("POST", f"/subjects/{subject}", {"schema": text})
        assert found["id"] == answer["id"]
        self.versions[subject][found["version"]] = text

    def delete(self, subject: str, version: int) -> None:
        answer = self.answer("DELETE", f"/subjects/{subject}/versions/{version}", None)
        assert answer == version or answer["error_code"] in NO_LONGER_THERE, answer
        del self.versions[subject][version]

    def answer(self, method: str, path: str, body: object) -> Any:
        for turn in range(100_000):
            try:
                status, answer = self.registries[turn % 2].call(method, path, body)
            except (OSError, ValueError):
                continue
            if status < 500:
                self.calls += 1
                assert status == 200 or method == "DELETE", (path, answer)
                return answer
        raise AssertionError(f"{method} {path} was never answered")


def test_registries_agree_through_failovers(cluster: LakeheadCluster) -> None:
    rng = random.Random(SEED)
    flags = ("--timeout-ms", "10000")
    registries = [RegistryProcess(cluster.bootstrap, "_schemas", *flags) for _ in range(2)]
    setting = {"compatibility": "NONE"}
    assert registries[0].call("PUT", "/config", setting)[0] == 200
    users = [RegistryUser(number, registries) for number in range(3)]
    is_over = threading.Event()

    def has_grown(goal: int) -> bool:
        return sum(user.calls for user in users) >= goal

    with ThreadPoolExecutor(len(users)) as pool:
        running = [pool.submit(user.run, is_over) for user in users]
        try:
            for kill in range(6):
                goal = sum(user.calls for user in users) + rng.randrange(20, 60)
                assert wait_until(partial(has_grown, goal), WAIT_S)
                node = cluster.nodes[kill % 3]
                node.kill()
                node.server.start()
                cluster.wait_members(3)
                if kill == 3:
                    registries[1].kill()
                    registries[1] = RegistryProcess(cluster.bootstrap, "_schemas", *flags)
        finally:
            is_over.set()
        for one in running:
            one.result(WAIT_S)
    registries.append(RegistryProcess(cluster.bootstrap, "_schemas", *flags))
    ids = {pair for user in users for pair in user.ids}
    assert len(ids) == len({text for text, _ in ids}) == len({number for _, number in ids})
    for registry in registries:
        for user in users:
            for subject, versions in user.versions.items():
                status, found = registry.call("GET", f"/subjects/{subject}/versions")
                assert found == sorted(versions) if versions else status == 404, subject
                for version, text in versions.items():
                    path = f"/subjects/{subject}/versions/{version}"
                    assert registry.call("GET", path)[1]["schema"] == text
        assert registry.stop() == 0
    check_log(cluster.bootstrap, "_schemas")


def test_kafka_connect_goes_on_while_nodes_are_restarted(
    cluster: LakeheadCluster, tmp_path: Path
) -> None:
    try:
        workers = []
        for name in ("worker-0", "worker-1"):
            (tmp_path / name).mkdir()
            workers.append(ConnectWorker(tmp_path / name, cluster.bootstrap))
    except MissingTool as missing:
        pytest.skip(str(missing))
    Cluster({"bootstrap.servers": cluster.bootstrap}).create_topic("lines", 1, {})
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.touch()
    written: list[str] = []
    both = {"tasks.max": "1"}
    configs = {
        "reads": both
        | {"connector.class": f"{FILES}SourceConnector", "file": str(source), "topic": "lines"}
        | {"exactly.once.support": "required", "transaction.boundary": "poll"}
        | {"batch.size": "100"},
        "writes": both
        | {"connector.class": f"{FILES}SinkConnector", "file": str(target), "topics": "lines"},
    }

    def write(count: int) -> None:
        lines = [f"line {n}" for n in range(len(written), len(written) + count)]
        written.extend(lines)
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def has_all() -> bool:
        return target.exists() and set(target.read_text().splitlines()) == set(written)

    def is_taken(name: str, config: dict[str, str]) -> bool:
        return workers[0].put_config(name, config) is not None

    def states() -> set[str]:
        return {state for name in configs for state in workers[0].states(name)}

    with workers[0].process, workers[1].process:
        for name, config in configs.items():
            assert wait_until(partial(is_taken, name, config), WAIT_S)
        write(500)
        assert wait_until(has_all, WAIT_S), workers[0].process.log.read_text()[-3000:]
        for is_kill in (False, True):
            for node in cluster.nodes:
                write(500)
                if is_kill:
                    node.kill()
                else:
                    assert node.server.stop() == 0
                write(500)
                node.server.start()
                cluster.wait_members(3)
                assert wait_until(has_all, WAIT_S), (node.node_id, states())
        # A failed task stays so until an operator restarts it.
        assert wait_until(lambda: states() == {"RUNNING"}, WAIT_S), states()
    assert [value.decode() for value in values(cluster.bootstrap, "lines")] == written
