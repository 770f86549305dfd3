"""`lakehead import --follow` while the source is written to and changed, and runs after a change at
the source.

With `BROKER=kafka` the source is Apache Kafka.
"""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from lakehead.broker.cli.cluster import open_at, read_state
from lakehead.broker.cli.migration.group_positions import stored_positions
from lakehead.broker.cli.migration.share_positions import stored_share_positions
from lakehead.broker.cli.migration.source_batches import _KNOWS_LOCAL, _LIST_OFFSETS, _is_tiered
from lakehead.broker.cli.migration.source_brokers import Fields, Place, SourceBrokers
from lakehead.broker.protocol.messages import entity
from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_record import Run, RunRecords, RunState
from lakehead.storage.metadata.state import MetadataImage
from tests.integration.test_kafka_import import has_committed, run_import
from tests.support.broker_process import KEEPING, BrokerProcess, server_under_test
from tests.support.share_consumer_process import ShareConsumerProcess
from tests.support.template_process import ROOT, ForkedPython, job_environment, lakehead_command
from tests.support.waiting import wait_until

LIMIT_S = 60
Ends = dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("source")
    with server_under_test(folder, settings=KEEPING) as server:
        yield server.bootstrap


def create(source: str, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": source})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic]
    made.result(30)

    def is_led() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(one.leader >= 0 for one in found.values())

    assert wait_until(is_led, 30)


def delete(source: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": source})
    admin.delete_topics([topic])[topic].result(30)


def send(source: str, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": source, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(30) == 0


def commit(source: str, group: str, topic: str, offset: int) -> None:
    member = Consumer({"bootstrap.servers": source, "group.id": group})
    try:
        assert wait_until(lambda: has_committed(member, [TopicPartition(topic, 0, offset)]), 60)
    finally:
        member.close()


async def _stored(folder: Path) -> tuple[MetadataImage, Mapping[tuple[str, str], int]]:
    store = open_at(f"file:{folder / 'store'}")
    try:
        state = await read_state(store)
        positions = await stored_positions(store, state)
    finally:
        await store.close()
    return state, {(key.group_id, key.topic): one.offset for key, one in positions.items()}


async def _runs(folder: Path) -> list[Run]:
    return await RunRecords(open_at(f"file:{folder / 'store'}")).newest(5, SystemClock().now_ms())


def stored(folder: Path) -> tuple[Ends, Mapping[tuple[str, str], int]]:
    """Return the bounds of each topic's partitions here, and positions by group and topic."""
    state, positions = asyncio.run(_stored(folder))
    ends = {
        name: [
            (state.stream(number).start_offset, state.stream(number).end_offset)
            for number in topic.partitions
        ]
        for name, topic in state.topics.items()
    }
    return ends, positions


class Following:
    """A `lakehead import --follow` that runs. `rows` are there when it has ended."""

    def __init__(self, source: str, folder: Path, *flags: str) -> None:
        self._told = folder.parent / "told"
        self._rows = folder.parent / "rows"
        command = [
            *(sys.executable, "-m", "lakehead", "import", source, "--path", str(folder)),
            *("--offsets-partitions", "4", "--json", "--follow", *flags),
        ]
        with self._told.open("w") as told, self._rows.open("w") as rows:
            self.process = ForkedPython(
                command, jobs=True, stdout=rows, stderr=told, env=job_environment(), cwd=ROOT
            )

    @property
    def told(self) -> str:
        return self._told.read_text()

    def has_told(self, text: str) -> bool:
        assert self.process.poll() is None, self.told
        return text in self.told

    def wait_told(self, text: str) -> None:
        assert wait_until(lambda: self.has_told(text), LIMIT_S), self.told

    @property
    def rows(self) -> dict[str, Any]:
        found = map(json.loads, self._rows.read_text().splitlines())
        return {one["topic"]: one for one in found if "topic" in one}


@contextmanager
def following(source: str, folder: Path, *flags: str) -> Iterator[Following]:
    """An import that follows until the end of the block, and ends well then."""
    running = Following(source, folder, *flags)
    try:
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(LIMIT_S) == 0, running.told
    finally:
        running.process.kill()
        running.process.wait(LIMIT_S)


def is_same(source: str, folder: Path, *topics: str) -> bool:
    flags = [text for topic in topics for text in ("--topic", topic)]
    found = [
        json.loads(line) for line in run_import(source, folder, "--verify", *flags).splitlines()
    ]
    return bool(found) and all(one["same"] and one["behind"] == 0 for one in found)


def test_follow_brings_what_is_written_until_it_is_ended(source: str, tmp_path: Path) -> None:
    create(source, "busy", 2)
    send(source, "busy", "1", "2", "3")
    folder = tmp_path / "data"
    with following(source, folder, "--topic", "busy") as running:
        running.wait_told("3 records came")
        send(source, "busy", "4")
        running.wait_told("1 records came")
        commit(source, "readers", "busy", 2)
        send(source, "busy", *map(str, range(100)), partition=1)
    assert running.rows["busy"]["records"] == 104
    assert stored(folder) == (
        {"busy": [(0, 4), (0, 100)], "__consumer_offsets": stored(folder)[0]["__consumer_offsets"]},
        {("readers", "busy"): 2},
    )
    assert is_same(source, folder, "busy")
    (run,) = asyncio.run(_runs(folder))
    assert (run.job, run.state, run.share) == ("import", RunState.SUCCEEDED, 1.0)
    assert run.result == {"topics": 1, "records": 104}


def test_an_import_that_was_killed_while_it_followed_goes_on(source: str, tmp_path: Path) -> None:
    create(source, "resumed", 2)
    send(source, "resumed", "1", "2")
    folder = tmp_path / "data"
    running = Following(source, folder, "--topic", "resumed")
    try:
        running.wait_told("2 records came")
        send(source, "resumed", "3", partition=1)
        running.wait_told("1 records came")
    finally:
        running.process.kill()
        running.process.wait(LIMIT_S)
    send(source, "resumed", "4", partition=1)
    run_import(source, folder, "--topic", "resumed")
    assert stored(folder)[0]["resumed"] == [(0, 2), (0, 2)]
    assert is_same(source, folder, "resumed")


def test_topics_and_partitions_that_are_added_come_too(source: str, tmp_path: Path) -> None:
    create(source, "growing")
    send(source, "growing", "1")
    folder = tmp_path / "data"
    with following(source, folder) as running:
        running.wait_told("records came")
        admin = AdminClient({"bootstrap.servers": source})
        admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(30)
        create(source, "with.dots-and_more")
        send(source, "with.dots-and_more", "1", "2")
        running.wait_told("2 records came")

        def has_third() -> bool:
            found = admin.list_topics("growing", timeout=10).topics["growing"].partitions
            return len(found) == 3 and found[2].leader >= 0

        assert wait_until(has_third, 30)
        send(source, "growing", "2", partition=2)
    ends, _ = stored(folder)
    assert ends["growing"] == [(0, 1), (0, 0), (0, 1)]
    assert ends["with.dots-and_more"] == [(0, 2)]


def test_a_topic_that_is_created_again_is_imported_from_its_start(
    source: str, tmp_path: Path
) -> None:
    create(source, "again")
    send(source, "again", "old 1", "old 2")
    folder = tmp_path / "data"
    with following(source, folder, "--topic", "again") as running:
        running.wait_told("2 records came")
        delete(source, "again")
        create(source, "again")
        send(source, "again", "new 1", "new 2", "new 3")
    assert stored(folder)[0] == {"again": [(0, 3)]}
    assert "topic again was imported from its start again" in running.told
    assert is_same(source, folder, "again")


def test_a_topic_that_is_deleted_at_the_source_stays(source: str, tmp_path: Path) -> None:
    create(source, "passing")
    create(source, "staying")
    send(source, "passing", "1")
    folder = tmp_path / "data"
    flags = ("--topic", "passing", "--topic", "staying")
    with following(source, folder, *flags) as running:
        running.wait_told("1 records came")
        delete(source, "passing")
        send(source, "staying", "1", "2")
        running.wait_told("2 records came")
    assert "topic passing was deleted at the source meanwhile, and stays here" in running.told
    assert stored(folder)[0] == {"passing": [(0, 1)], "staying": [(0, 2)]}


def test_positions_that_end_at_the_source_end_here(source: str, tmp_path: Path) -> None:
    create(source, "read")
    create(source, "other")
    send(source, "read", "1", "2", "3")
    send(source, "other", "1")
    commit(source, "going", "read", 1)
    commit(source, "lasting", "read", 2)
    commit(source, "lasting", "other", 1)
    folder = tmp_path / "data"
    run_import(source, folder, "--topic", "read", "--topic", "other")
    assert stored(folder)[1] == {
        ("going", "read"): 1,
        ("lasting", "read"): 2,
        ("lasting", "other"): 1,
    }
    before = stored(folder)[0]["__consumer_offsets"]
    run_import(source, folder, "--topic", "read", "--topic", "other")
    assert stored(folder)[0]["__consumer_offsets"] == before  # nothing is written twice
    admin = AdminClient({"bootstrap.servers": source})
    admin.delete_consumer_groups(["going"])["going"].result(30)
    admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions("lasting", [TopicPartition("read", 0, 3)])]
    )["lasting"].result(30)
    run_import(source, folder, "--topic", "read")
    assert stored(folder)[1] == {("lasting", "read"): 3, ("lasting", "other"): 1}


def test_what_retention_removes_between_runs_is_removed_here(source: str, tmp_path: Path) -> None:
    create(source, "cut", 2)
    for partition in range(2):
        send(source, "cut", *map(str, range(10)), partition=partition)
    folder = tmp_path / "data"
    run_import(source, folder, "--topic", "cut")
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.delete_records([TopicPartition("cut", 0, 4)]).values():
        future.result(30)
    send(source, "cut", "10")
    found = json.loads(run_import(source, folder, "--topic", "cut", "--verify").splitlines()[0])
    assert (found["start"], found["end"], found["behind"], found["same"]) == (4, 10, 1, True)
    for future in admin.delete_records([TopicPartition("cut", 1, 10)]).values():
        future.result(30)
    run_import(source, folder, "--topic", "cut")
    assert stored(folder)[0]["cut"] == [(4, 11), (10, 10)]
    assert is_same(source, folder, "cut")


def test_a_partition_that_begins_late_does_so_after_a_kill_at_its_begin(
    source: str, tmp_path: Path
) -> None:
    create(source, "late", 3)
    for partition in range(2):
        send(source, "late", *map(str, range(10)), partition=partition)
    admin = AdminClient({"bootstrap.servers": source})
    cuts = [TopicPartition("late", 0, 7), TopicPartition("late", 1, 10)]
    for future in admin.delete_records(cuts).values():
        future.result(30)
    folder = tmp_path / "data"
    run_import(source, folder, "--topic", "late", failpoint="import_begun")
    assert stored(folder)[0]["late"] == [(0, 7), (0, 10), (0, 0)]  # filled and not trimmed
    run_import(source, folder, "--topic", "late")
    assert stored(folder)[0]["late"] == [(7, 10), (10, 10), (0, 0)]
    assert is_same(source, folder, "late")


def test_a_topic_is_imported_from_its_start_on_request(source: str, tmp_path: Path) -> None:
    create(source, "whole", 2)
    create(source, "beside")
    send(source, "whole", "1", "2", "3")
    send(source, "beside", "1")
    commit(source, "followers", "whole", 2)
    folder = tmp_path / "data"
    flags = ("--topic", "whole", "--topic", "beside")
    run_import(source, folder, *flags)
    (row,) = map(
        json.loads, run_import(source, folder, "--topic", "whole", "--from-start").splitlines()
    )
    assert row["records"] == 3
    ends, positions = stored(folder)
    assert (ends["whole"], ends["beside"]) == ([(0, 3), (0, 0)], [(0, 1)])
    assert positions == {("followers", "whole"): 2}
    (row, _) = map(json.loads, run_import(source, folder, *flags).splitlines())
    assert row["records"] == 0  # the next run knows the topic
    assert is_same(source, folder, "whole", "beside")


def test_a_topic_of_the_source_itself_is_refused(source: str, tmp_path: Path) -> None:
    refused = lakehead_command(
        *("import", source, "--path", str(tmp_path), "--topic", "__consumer_offsets")
    )
    assert refused.returncode == 1
    assert "positions of groups come without it" in refused.stderr


async def test_a_source_without_tiered_storage_has_all_offsets_itself(source: str) -> None:
    await asyncio.to_thread(create, source, "untiered")
    brokers = SourceBrokers({"bootstrap.servers": source}, None, random.Random(1))
    try:
        listed = (await brokers.topics())["untiered"]
        place = Place(listed.topic, 0)
        channel = await brokers.channel(listed.leaders[0])
        assert channel.supports(_LIST_OFFSETS, _KNOWS_LOCAL)
        assert not await _is_tiered(brokers, place, 0)
    finally:
        brokers.close()


def test_a_source_that_restarts_is_waited_for(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    folder = tmp_path / "imported" / "data"
    folder.parent.mkdir()
    try:
        create(broker.bootstrap, "lasting", 2)
        send(broker.bootstrap, "lasting", "1")
        with following(broker.bootstrap, folder) as running:
            running.wait_told("1 records came")
            broker.kill()
            broker.start()
            send(broker.bootstrap, "lasting", "2", "3", partition=1)
            running.wait_told("2 records came")
        assert is_same(broker.bootstrap, folder, "lasting")
    finally:
        broker.stop()


async def _share_request(bootstrap: str, key: int, name: str, fields: Fields) -> Any:
    brokers = SourceBrokers({"bootstrap.servers": bootstrap}, None, random.Random(1))
    try:
        return await brokers.request(key, 0, name, fields)
    finally:
        brokers.close()


def alter_share_offset(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Have a share group without members begin partition 0 of a topic at an offset."""

    def fields(module: Any) -> Mapping[str, Any]:
        place = {"partition_index": 0, "start_offset": offset}
        one = entity(module, "AlterShareGroupOffsetsRequestPartition", **place)
        named = entity(
            module, "AlterShareGroupOffsetsRequestTopic", topic_name=topic, partitions=[one]
        )
        return {"group_id": group, "topics": [named]}

    def is_done() -> bool:
        name = "AlterShareGroupOffsetsRequest"
        response = asyncio.run(_share_request(bootstrap, 91, name, fields))
        return bool(response.error_code == 0)

    assert wait_until(is_done, 60)


def share_offsets(folder: Path) -> dict[tuple[str, str, int], int]:
    """Return the positions of share groups here, by group, topic and partition."""

    async def read() -> dict[tuple[str, str, int], int]:
        store = open_at(f"file:{folder / 'store'}")
        state = await read_state(store)
        found = await stored_share_positions(store, state)
        names = {bytes.fromhex(one.topic_id): name for name, one in state.topics.items()}
        return {(key.group_id, names[key.topic_id], key.partition): to for key, to in found.items()}

    return asyncio.run(read())


def test_share_groups_go_on_where_they_were_at_the_source(source: str, tmp_path: Path) -> None:
    create(source, "shared", 2)
    send(source, "shared", *map(str, range(10)))
    commit(source, "plain", "shared", 1)  # makes __consumer_offsets
    alter_share_offset(source, "team", "shared", 3)
    alter_share_offset(source, "passing", "shared", 5)
    folder = tmp_path / "data"
    done = lakehead_command(
        *("import", source, "--path", str(folder), "--topic", "shared"),
        *("--offsets-partitions", "4"),
    )
    assert done.returncode == 0, done.stderr
    assert "positions of 1 groups and 2 share groups" in done.stderr
    assert share_offsets(folder) == {("team", "shared", 0): 3, ("passing", "shared", 0): 5}
    assert is_same(source, folder, "shared")
    alter_share_offset(source, "team", "shared", 4)
    admin = AdminClient({"bootstrap.servers": source})
    admin.delete_consumer_groups(["passing"])["passing"].result(30)
    differing = lakehead_command(
        "import", source, "--path", str(folder), "--topic", "shared", "--verify"
    )
    assert differing.returncode == 1
    assert "share group team at shared-0: 3 here, and 4 at the source" in differing.stderr
    assert "share group passing at shared-0: 5 here, and none at the source" in differing.stderr
    run_import(source, folder, "--topic", "shared")
    assert share_offsets(folder) == {("team", "shared", 0): 4}
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        member = ShareConsumerProcess(broker.bootstrap, "team", "shared")
        assert wait_until(lambda: set(member.values) == set(range(4, 10)), LIMIT_S), member.values
        member.close(LIMIT_S)
    finally:
        broker.stop()
