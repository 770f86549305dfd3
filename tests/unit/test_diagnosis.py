"""Findings about a machine, a store, a log and a cluster, and the reasons for which partitions
wait.
"""

import asyncio
import random
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehead.broker.cluster.node_status import node_rows
from lakehead.broker.diagnosis.certificates import judge_certificates
from lakehead.broker.diagnosis.cluster import judge_cluster
from lakehead.broker.diagnosis.finding import Finding, Verdict
from lakehead.broker.diagnosis.log_volume import judge_log
from lakehead.broker.diagnosis.machine import (
    MachineFacts,
    judge_disk,
    judge_listeners,
    judge_machine,
    judge_room,
    memory_needed,
)
from lakehead.broker.diagnosis.partition import PartitionFacts, explain, find_partition
from lakehead.broker.diagnosis.store import try_store
from lakehead.broker.network.listeners import Listener, Listeners
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.broker.settings import Settings
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import NotFound, StoreUnavailable
from lakehead.storage.metadata.records import (
    AssignStreams,
    ClusterCreated,
    CreateStream,
    CreateTopic,
    FenceNode,
    OpenStream,
    Record,
    RegisterNode,
    TableProgress,
    TakeTable,
)
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import Buffer, FileStore, MemoryStore, ObjectStore

TOPIC_ID = "cd" * 16
ROOMY = MachineFacts(memory=1 << 40, is_container=False, cores=64, open_files=-1)


def verdicts(findings: Sequence[Finding]) -> dict[str, Verdict]:
    return {finding.check: finding.verdict for finding in findings}


def cluster(*more: Record, configs: dict[str, str] | None = None) -> MetadataImage:
    """Nodes 0 and 1; topic orders-eu with one partition, which node 0 leads."""
    records: list[Record] = [
        ClusterCreated(cluster_id="c" * 32),
        *(
            RegisterNode(
                node_id=node, epoch=0, incarnation=f"{node}", host="h", port=9092, host_id="m"
            )
            for node in (0, 1)
        ),
        CreateTopic(name="orders-eu", topic_id=TOPIC_ID, configs=configs or {}),
        CreateStream(stream_id=0, topic_id=TOPIC_ID, partition=0),
        AssignStreams(node_id=0, stream_ids=(0,)),
        OpenStream(stream_id=0, epoch=0, node_id=0, node_epoch=0),
        *more,
    ]
    return apply_records(MetadataImage(), records, 1000)


def explained(state: MetadataImage, responding: set[int] | None) -> PartitionFacts:
    return explain(state, *find_partition(state, "orders-eu-0"), responding)


def test_a_machine_with_enough_of_everything_has_no_advice() -> None:
    findings = judge_machine(ROOMY, Settings())
    assert {finding.verdict for finding in findings} == {Verdict.OK}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.99, Verdict.FAILED), (1.1, Verdict.WARNING), (1.3, Verdict.OK)]
)
def test_memory_is_judged_by_the_sum_of_the_budgets_of_all_nodes(
    share: float, expected: Verdict
) -> None:
    settings = Settings(nodes=3)
    assert memory_needed(settings) == 3 * memory_needed(Settings())
    facts = MachineFacts(
        memory=int(memory_needed(settings) * share), is_container=True, cores=3, open_files=-1
    )
    assert verdicts(judge_machine(facts, settings))["memory"] is expected


def test_too_few_open_files_and_cores_are_warnings() -> None:
    facts = MachineFacts(memory=1 << 40, is_container=False, cores=1, open_files=1024)
    found = verdicts(judge_machine(facts, Settings(nodes=2)))
    assert (found["cores"], found["open files"]) == (Verdict.WARNING, Verdict.WARNING)


def test_an_address_that_another_process_has_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (finding,) = judge_listeners([Listener(name="A", host="127.0.0.1", port=port)])
    assert finding.verdict is Verdict.WARNING
    (finding,) = judge_listeners([Listener(name="A", host="127.0.0.1", port=port)])
    assert finding.verdict is Verdict.OK


def test_an_address_of_another_machine_is_a_failure() -> None:
    (finding,) = judge_listeners([Listener(name="A", host="no.such.host.invalid", port=9092)])
    assert finding.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (-1, Verdict.FAILED),
        (1, Verdict.OK),
        (330, Verdict.OK),
        (340, Verdict.WARNING),
        (366, Verdict.FAILED),
    ],
)
def test_a_certificate_that_ends_soon_or_has_ended_is_found(
    tmp_path: Path, days: int, expected: Verdict
) -> None:
    made_ms = 1_800_000_000_000
    authority = DevelopmentCa(tmp_path, utc(made_ms))
    authority.issue("node", hosts=("localhost",), days=365)
    settings = Settings(
        listeners="CLIENTS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:SSL",
        ssl_keystore_location=str(tmp_path / "node.pem"),
        ssl_truststore_location=str(authority.certificate_path),
    )
    now_ms = made_ms + days * 86_400_000
    listeners = Listeners(settings).all.values()
    (found,) = judge_certificates(listeners, settings, now_ms)
    assert (found.check, found.verdict) == ("certificate CLIENTS", expected)
    ends = TlsContexts(listeners, settings).ends_s()  # as the metric has it
    assert ends == {"CLIENTS": pytest.approx(made_ms / 1000 + 365 * 86_400, abs=86_400)}
    (tmp_path / "node.pem").write_text("no certificate")
    (found,) = judge_certificates(listeners, settings, now_ms)
    assert found.verdict is Verdict.FAILED


def test_a_log_that_has_no_room_is_a_failure(tmp_path: Path) -> None:
    findings = judge_log(f"block:{tmp_path}/not/yet/wal?size=900000T", clock=SystemClock())
    assert verdicts(findings) == {"write-ahead log": Verdict.FAILED}


def test_a_log_that_is_there_needs_no_more_room(tmp_path: Path) -> None:
    log = tmp_path / "wal"
    log.touch()
    with log.open("r+b") as file:
        file.truncate(1 << 43)  # sparse: larger than the disk
    findings = judge_log(f"block:{log}?size=8T", clock=SystemClock())
    assert findings[0].verdict is Verdict.OK
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def test_a_log_in_memory_is_a_warning() -> None:
    assert verdicts(judge_log("memory:?size=1g", clock=SystemClock())) == {
        "write-ahead log": Verdict.WARNING
    }


def test_room_is_looked_for_in_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert judge_room(tmp_path / "a" / "b", 1, "data").found.endswith(str(tmp_path))


@pytest.mark.parametrize(("free_mib", "verdicts"), [(1024, []), (1023, [Verdict.WARNING])])
def test_a_disk_of_the_store_that_is_almost_full_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, verdicts: list[Verdict]
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free_mib * 1024 * 1024)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert [finding.verdict for finding in judge_disk(tmp_path)] == verdicts


class SkewedClock(SystemClock):
    """The machine's clock, some milliseconds wrong."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


class OverwritingStore(MemoryStore):
    """A store that ignores the condition of a put."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await self.delete([key])
        await super().create(key, pieces)


class UnreachableStore(MemoryStore):
    """A store of which no request returns."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        raise StoreUnavailable("connection refused")


def tried(store: ObjectStore, ahead_ms: int = 0) -> list[Finding]:
    clock = SkewedClock(ahead_ms)
    return asyncio.run(try_store(store, clock=clock, rng=random.Random(1)))


def test_a_store_is_left_as_it_was_found(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    assert verdicts(tried(store)) == {"object store": Verdict.OK, "clock": Verdict.OK}
    assert asyncio.run(store.list("")) == []


def test_a_store_that_writes_over_objects_is_a_failure() -> None:
    assert verdicts(tried(OverwritingStore())) == {"object store": Verdict.FAILED}


def test_a_store_that_cannot_be_reached_is_a_failure_with_its_reason() -> None:
    (finding,) = tried(UnreachableStore())
    assert finding.verdict is Verdict.FAILED
    assert "connection refused" in finding.found


@pytest.mark.parametrize("ahead_ms", [-60_000, 60_000])
def test_a_clock_that_differs_from_the_stores_is_a_warning(tmp_path: Path, ahead_ms: int) -> None:
    (_, clock) = tried(FileStore(str(tmp_path)), ahead_ms)
    assert clock.verdict is Verdict.WARNING
    assert ("ahead" in clock.found) == (ahead_ms > 0)


def test_a_healthy_partition_waits_for_nothing() -> None:
    state = cluster()
    facts = explained(state, {0, 1})
    assert (facts.leader, facts.leader_epoch, facts.waits) == (0, 0, ())
    findings = verdicts(judge_cluster(state, {0, 1}))
    assert (findings["nodes"], findings["partitions"]) == (Verdict.OK, Verdict.OK)


def test_a_partition_of_a_silent_leader_waits_for_its_session() -> None:
    state = cluster()
    (reason,) = explained(state, {1}).waits
    assert "node 0 at h:9092" in reason
    findings = verdicts(judge_cluster(state, {1}))
    assert (findings["nodes"], findings["partitions"]) == (Verdict.WARNING, Verdict.FAILED)


def test_nodes_that_cannot_be_reached_from_here_are_not_said_to_be_silent() -> None:
    state = cluster()
    assert explained(state, None).waits == ()
    found = {one.check: one for one in judge_cluster(state, None)}
    assert "live in the metadata" in found["nodes"].found
    assert "--command-config" in found["nodes"].advice
    assert found["partitions"].verdict is Verdict.OK
    assert {row["state"] for row in node_rows(state, None)} == {"unknown"}
    assert {row["state"] for row in node_rows(state, {})} == {"silent"}


def test_a_partition_of_a_fenced_leader_waits_for_the_recovery_of_its_log() -> None:
    state = cluster(FenceNode(node_id=0, epoch=0))
    facts = explained(state, {1})
    assert facts.leader is None
    (reason,) = facts.waits
    assert "write-ahead log" in reason
    assert "machine m" in reason
    assert verdicts(judge_cluster(state, {1}))["recovery"] is Verdict.FAILED


def test_a_partition_that_moves_names_both_nodes() -> None:
    (reason,) = explained(cluster(AssignStreams(node_id=1, stream_ids=(0,))), {0, 1}).waits
    assert reason == "it moves from node 0 to node 1"


def test_a_table_with_a_problem_is_a_reason_and_a_warning() -> None:
    state = cluster(
        TakeTable(topic_id=TOPIC_ID, holder="x", term=0, until_ms=5000),
        TableProgress(topic_id=TOPIC_ID, term=0, offsets=(0,), problem="no such column"),
        configs={"lakehead.table.enable": "true"},
    )
    (reason,) = explained(state, {0, 1}).waits
    assert "no such column" in reason
    assert verdicts(judge_cluster(state, {0, 1}))["tables"] is Verdict.WARNING


@pytest.mark.parametrize("name", ["orders-eu", "orders-eu-1", "orders-eu-x", "none-0", "", "-0"])
def test_a_partition_that_is_not_there_is_said_in_one_line(name: str) -> None:
    with pytest.raises(NotFound) as raised:
        find_partition(cluster(), name)
    assert "\n" not in str(raised.value)
