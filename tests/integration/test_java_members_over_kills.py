"""Kafka's own members of a consumer group (KIP-848) and of share groups (KIP-932), over rolling
kill -9 of the nodes of a cluster: no record is lost, and none comes back that was accepted.
"""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from bench.apache_kafka import tools
from tests.checker.history import History
from tests.checker.rules import violations
from tests.checker.share_clients import JavaMember, MemberProcess
from tests.checker.share_history import ShareHistory
from tests.checker.share_member_process import name_of
from tests.checker.share_rules import ShareLimits, share_violations, unfinished
from tests.integration.test_transaction_node_kills import kill
from tests.support.kafka_tools import require_kafka_tools
from tests.support.share_group_configs import set_group_configs
from tests.support.supervised import supervised
from tests.support.traffic import (
    IDEMPOTENT,
    ProducerThread,
    create_topic,
    new_consumer,
    read_log,
)
from tests.support.waiting import wait_until

TOPIC, PARTITIONS, NODES = "rolled", 6, 3
CONSUMERS, SHARED, PRINTED = "consumers", "shared", "printed"
"""The groups."""
LIMIT_S = 120.0
LOCK_S = 10.0
DELIVERIES_MAX = 10
BETWEEN_KILLS = 300
"""Records that each group gets from one kill to the next, at least."""
FLAGS = (
    *("--group.consumer.session.timeout.ms", "6000"),
    *("--group.consumer.heartbeat.interval.ms", "500"),
    *("--group.share.session.timeout.ms", "6000", "--group.share.heartbeat.interval.ms", "500"),
    *("--group.share.record.lock.duration.ms", str(int(LOCK_S * 1000))),
    *("--group.share.delivery.count.limit", str(DELIVERIES_MAX)),
)


class JavaConsumer:
    """A VerifiableConsumer of the new protocol, which notes its assignments and records."""

    def __init__(self, name: str, bootstrap: str, history: History, shares: ShareHistory) -> None:
        self.places: set[tuple[int, int]] = set()
        self._history = history
        self._read: list[tuple[int, int, bytes]] = []
        self._position: dict[int, int | None] = {}
        command = tools.command(
            "kafka-verifiable-consumer",
            *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group-id", CONSUMERS),
            *("--group-protocol", "consumer", "--verbose"),
        )
        self.process = MemberProcess(name, command, self._note, shares)

    def _note(self, name: str, line: str) -> None:
        event = json.loads(line)
        if event["name"] == "partitions_assigned":
            self._position |= {place["partition"]: None for place in event["partitions"]}
            self._history.record_assign(name, self._position)
        elif event["name"] == "partitions_revoked":
            for place in event["partitions"]:
                self._position.pop(place["partition"], None)
            self._history.record_assign(name, self._position)
        elif event["name"] == "record_data":
            partition, offset = event["partition"], event["offset"]
            self._read.append((partition, offset, event["value"].encode()))
        elif event["name"] == "records_consumed":
            self._history.record_poll(name, self._read)
            self.places |= {(partition, offset) for partition, offset, _ in self._read}
            self._position |= {partition: offset + 1 for partition, offset, _ in self._read}
            self._read.clear()


class Printer:
    """A console share consumer, which prints values."""

    def __init__(self, bootstrap: str, shares: ShareHistory) -> None:
        self.values: list[str] = []
        command = tools.command(
            "kafka-console-share-consumer",
            *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group", PRINTED),
        )
        self.process = MemberProcess("printer", command, self._note, shares)

    def _note(self, _name: str, line: str) -> None:
        self.values.append(name_of(line.rstrip("\n").encode()))


@pytest.mark.slow
@pytest.mark.parametrize("wal", [(), ("--wal", "object:")], ids=["block", "object"])
def test_java_members_lose_nothing_over_rolling_kills(wal: tuple[str, ...], tmp_path: Path) -> None:
    require_kafka_tools()
    history, shared, aside = History(), ShareHistory(), ShareHistory()
    with supervised(tmp_path, NODES, *FLAGS, *wal) as nodes:
        nodes.wait_ready()
        bootstrap = ",".join(nodes.addresses)
        create_topic(bootstrap, TOPIC, PARTITIONS)
        for group in (SHARED, PRINTED):
            set_group_configs(bootstrap, group)
        producer = ProducerThread(
            "producer",
            bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            history=history,
            config=IDEMPOTENT,
            records_per_s=100,
        )
        printer = Printer(bootstrap, aside)
        consumers = [JavaConsumer(f"java{n}", bootstrap, history, aside) for n in range(2)]
        members = [
            JavaMember(f"share-{mode}", share_command(bootstrap, mode), shared)
            for mode in ("auto", "sync", "async")
        ]
        processes = [printer.process, *(one.process for one in consumers), *members]
        try:
            producer.start()

            def got() -> list[int]:
                read = set().union(*(one.places for one in consumers))
                return [len(read), len(shared.deliveries), len(set(printer.values))]

            faults = []
            for node_id in range(NODES):
                wanted = [count + BETWEEN_KILLS for count in got()]
                assert wait_until(lambda: all_reach(got(), wanted), LIMIT_S), (got(), nodes.log)  # noqa: B023
                begun = time.monotonic()
                kill(nodes, node_id)
                faults.append((begun, time.monotonic()))
            assert producer.finish() == 0
            log = read_log(bootstrap, TOPIC, PARTITIONS)
            total = sum(map(len, log.values()))
            named = {p: [(o, name_of(value)) for o, value in found] for p, found in log.items()}
            assert wait_until(lambda: all_reach(got(), [total] * 3), LIMIT_S), (got(), total)
            assert wait_until(lambda: unfinished(shared, named, DELIVERIES_MAX) == 0, LIMIT_S)
            assert [one.name for one in processes if not one.is_running] == []
        finally:
            for process in processes:
                process.end(politely=True)
        ends = {p: len(records) for p, records in log.items()}
        assert committed(bootstrap) == ends
    assert all(one.places for one in consumers)
    took = {one.member for found in shared.deliveries.values() for one in found}
    assert took == {one.name for one in members}
    assert violations(history, log) == []
    limits = ShareLimits(deliveries_max=DELIVERIES_MAX, lock_s=LOCK_S, faults=faults)
    assert share_violations(shared, named, limits) == []
    assert set(printer.values) == {value for found in named.values() for _, value in found}


def share_command(bootstrap: str, mode: str) -> list[str]:
    return tools.command(
        "kafka-verifiable-share-consumer",
        *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group-id", SHARED),
        *("--acknowledgement-mode", mode, "--verbose"),
    )


def all_reach(counts: list[int], wanted: list[int]) -> bool:
    return all(count >= least for count, least in zip(counts, wanted, strict=True))


def committed(bootstrap: str) -> dict[int, int]:
    """Return the positions of the consumer group."""
    consumer = new_consumer(bootstrap, {"group.id": CONSUMERS})
    try:
        places = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(places, timeout=60)}
    finally:
        consumer.close()
