"""Several registries on one topic: one id for a schema and one schema for an id."""

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from lakehead.connectors.schema_registry.errors import RegistryError
from lakehead.connectors.schema_registry.log import SchemaLog, prepare_topic
from lakehead.connectors.schema_registry.records import (
    MalformedRecord,
    Record,
    VersionRecord,
    decode,
)
from lakehead.connectors.schema_registry.registry import Registry
from lakehead.connectors.schema_registry.requested import RequestedSchema
from lakehead.connectors.schema_registry.state import RegistryState
from lakehead.connectors.schema_registry.subjects import Subject
from lakehead.storage.clock import SystemClock
from tests.support.broker_process import BrokerProcess
from tests.support.registry_process import RegistryProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("connectors")


def schema(name: str) -> RequestedSchema:
    text = json.dumps({"type": "record", "name": name, "fields": []})
    return RequestedSchema(kind="AVRO", text=text)


@contextmanager
def registries(
    broker: BrokerProcess, topic: str, count: int, *, timeout_s: float = 60
) -> Iterator[list[Registry]]:
    client = {"bootstrap.servers": broker.bootstrap}
    prepare_topic(client, topic, replication_factor=1, timeout_s=60)
    logs = [
        SchemaLog(client, topic, clock=SystemClock(), rng=random.Random(seed), timeout_s=timeout_s)
        for seed in range(count)
    ]
    for log in logs:
        log.open()
    yield [Registry(log) for log in logs]
    for log in logs:
        log.close()


def ids_in(log: SchemaLog) -> dict[str, int]:
    """The ids of all subjects, once all of the topic is read."""
    log.catch_up()
    with log.lock:
        names = list(log.state.subjects(":*:"))
        return {name: log.state.versions(Subject(".", name))[-1].schema_id for name in names}


def test_a_change_is_not_carried_out_after_its_time_is_up(broker: BrokerProcess) -> None:
    with registries(broker, "_schemas_late", 1, timeout_s=5) as (registry,):
        began, may_end = threading.Event(), threading.Event()

        def decide_late() -> tuple[list[Record], None]:
            began.set()
            may_end.wait(60)
            return [], None

        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(registry.log.write, decide_late)
            assert began.wait(60)
            with pytest.raises(RegistryError, match="other changes took 5 s"):
                registry.register(Subject(".", "late"), schema("Late"), normalize=False)
            may_end.set()
            slow.result(60)
        assert ids_in(registry.log) == {}


def test_racing_registries_agree(broker: BrokerProcess) -> None:
    names = [f"R{number}" for number in range(12)]

    def register(pair: tuple[Registry, str]) -> tuple[str, int]:
        registry, name = pair
        return name, registry.register(Subject(".", name), schema(name), normalize=False)

    with registries(broker, "_schemas_race", 2) as both, ThreadPoolExecutor(8) as pool:
        # Everybody registers everything, at both registries at once.
        pairs = [(registry, name) for name in names for registry in both]
        answers = list(pool.map(register, pairs))
        found = [ids_in(registry.log) for registry in both]
    ids = dict(answers)
    assert all(ids[name] == number for name, number in answers), "two ids for one schema"
    assert sorted(ids.values()) == list(range(1, len(names) + 1)), "one id for two schemas, or none"
    assert found == [ids, ids]
    with registries(broker, "_schemas_race", 1) as (later,):
        assert ids_in(later.log) == ids, "a registry that starts later holds the same"


def test_a_registration_is_read_whole_before_it_is_acknowledged(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be several records: what follows is decided on all of them."""
    is_acknowledged = threading.Event()

    def read_late(key: bytes | None, value: bytes | None) -> Record | None:
        record = decode(key, value)
        if isinstance(record, VersionRecord):
            is_acknowledged.wait(0.5)
        return record

    with registries(broker, "_schemas_whole", 1) as (registry,):
        monkeypatch.setattr("lakehead.connectors.schema_registry.log.decode", read_late)
        subject = Subject(".lab", "first")
        registry.register(subject, schema("First"), normalize=False)
        is_acknowledged.set()
        with registry.log.lock:
            assert [each.schema_id for each in registry.log.state.versions(subject)] == [1]
        assert registry.register(Subject(".lab", "second"), schema("Second"), normalize=False) == 2


def test_a_paused_registry_cannot_spoil_what_another_wrote(broker: BrokerProcess) -> None:
    """It decided before the pause; what it decided is void, and decided anew."""
    with registries(broker, "_schemas_pause", 2) as (paused, other):
        subject = Subject(".", "s")
        paused.register(Subject(".", "first"), schema("First"), normalize=False)
        decided, go_on = threading.Event(), threading.Event()
        attempts = 0

        def decide() -> Any:
            nonlocal attempts
            attempts += 1
            found = paused._registration(subject, schema("Late"), False)
            decided.set()
            assert go_on.wait(60)
            return found

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(paused.log.write, decide)
            assert decided.wait(60)
            quick = other.register(Subject(".", "t"), schema("Quick"), normalize=False)
            go_on.set()
            assert late.result(60) == quick + 1
        assert attempts == 2
        assert ids_in(paused.log) == ids_in(other.log) == {"first": 1, "t": quick, "s": quick + 1}


def lost_answers(
    commit: Callable[[Producer, Sequence[Record], float], None], *, is_done: bool
) -> Callable[[Producer, Sequence[Record], float], None]:
    """A commit whose answer is lost, once: it happened or it did not, and nobody was told."""
    left = [1]

    def lossy(producer: Producer, records: Sequence[Record], deadline: float) -> None:
        from lakehead.connectors.schema_registry.log import _NotWritten

        if not left:
            commit(producer, records, deadline)
            return
        left.clear()
        if is_done:
            commit(producer, records, deadline)
        raise _NotWritten("the answer is lost")

    return lossy


@pytest.mark.parametrize("is_done", [True, False])
def test_a_lost_answer_is_settled_by_reading(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    topic = f"_schemas_lost_{is_done}"
    with registries(broker, topic, 1) as (registry,):
        subject = Subject(".", "s")
        log = registry.log
        monkeypatch.setattr(log, "_commit", lost_answers(log._commit, is_done=is_done))
        assert registry.register(subject, schema("S"), normalize=False) == 1
        monkeypatch.setattr(log, "_commit", lost_answers(log._commit, is_done=is_done))
        # Asked again it would say that the version is deleted already: but it was this call.
        assert registry.delete_version(subject, 1, permanent=False) == 1
        with pytest.raises(RegistryError) as again:
            registry.delete_version(subject, 1, permanent=False)
        assert again.value.code == 40406
        with log.lock:
            assert len(log.state.versions(subject, deleted=True)) == 1


@pytest.mark.slow
def test_registries_that_are_killed_leave_one_id_for_each_schema(broker: BrokerProcess) -> None:
    """Clients ask until they are answered, while registries are killed and started again."""
    names = [f"K{number}" for number in range(16)]
    answers: dict[str, set[int]] = {name: set() for name in names}
    holders = [RegistryProcess(broker.bootstrap, "_schemas_kills") for _ in range(2)]
    done = threading.Event()

    def ask(name: str) -> None:
        text = json.dumps({"type": "record", "name": name, "fields": []})
        for turn in range(2000):
            process = holders[turn % 2]
            try:
                answers[name].add(process.register(name, text))
                return
            except (OSError, AssertionError, ValueError):
                done.wait(0.05)
        raise AssertionError(f"{name} was never answered")

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, name) for name in names]
        for turn in range(2):
            while sum(one.done() for one in asked) < (turn + 1) * 5:
                done.wait(0.01)
            holders[turn].kill()
            holders[turn] = RegistryProcess(broker.bootstrap, "_schemas_kills")
        for one in asked:
            one.result(120)
    for process in holders:
        for name in names:
            status, answer = process.call("GET", f"/subjects/{name}/versions/latest")
            assert status == 200
            answers[name].add(answer["id"])
    assert all(len(found) == 1 for found in answers.values()), answers
    assert len(set.union(*answers.values())) == len(names)
    for process in holders:
        assert process.stop() == 0
    check_log(broker.bootstrap, "_schemas_kills")


@pytest.mark.slow
def test_a_cluster_that_is_down_makes_nothing_unknown(tmp_path: Path) -> None:
    """What is known is served on; what is not is an error that clients try again, never "none"."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        process = RegistryProcess(broker.bootstrap, "_schemas", "--timeout-ms", "10000")
        text = '{"type":"record","name":"D","fields":[]}'
        schema_id = process.register("down", text)
        broker.kill()
        assert process.call("GET", f"/schemas/ids/{schema_id}") == (200, {"schema": text})
        assert process.register("down", text) == schema_id
        for method, path, body in [
            ("GET", "/schemas/ids/77", None),
            ("GET", "/subjects/other/versions/1", None),
            ("POST", "/subjects/down/versions", {"schema": '"string"'}),
        ]:
            status, answer = process.call(method, path, body)
            assert status == 500
            assert answer["error_code"] in (50001, 50002)
        broker.start()
        other = {"schema": '"string"'}

        def is_taken() -> bool:
            return process.call("POST", "/subjects/other/versions", other)[0] == 200

        assert wait_until(is_taken, 120)
        assert process.call("GET", "/subjects/other/versions/1")[1]["id"] == schema_id + 1
        assert process.stop() == 0
    finally:
        broker.kill()


def test_an_id_that_an_import_replaced_is_not_given_again(broker: BrokerProcess) -> None:
    """Compaction leaves no version that has it."""
    topic = "_schemas_replaced"
    with registries(broker, topic, 1) as (registry,):
        registry.set_mode("", "IMPORT", force=False)
        subject = Subject(".", "imported")
        for number, name in ((90, "Replaced"), (50, "Stays")):
            given = replace(schema(name), schema_id=number, version=1)
            assert registry.register(subject, given, normalize=False) == number
        registry.set_mode("", "READWRITE", force=False)
    compacted = RegistryState()
    for key, value in compacted_records(broker.bootstrap, topic).items():
        if (record := decode(key, value)) is not None:
            compacted.apply(record)
    assert [each.schema_id for each in compacted.versions(subject)] == [50]
    assert compacted.next_id(".") == 91


def compacted_records(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """The records of a topic that compaction leaves: the last one of each key."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "compacted",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, bytes | None] = {}
    while (message := consumer.poll(30)) is not None:
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        key = bytes(message.key() or b"")
        found.pop(key, None)
        found[key] = message.value()
    consumer.close()
    return found


def test_a_record_with_an_infinite_number_is_skipped() -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    with pytest.raises(MalformedRecord):
        decode(key, b'{"subject":"s","version":1,"id":1e999,"schema":"x"}')


def check_log(bootstrap: str, topic: str) -> None:
    """What any consumer of committed records sees: an id is one schema, and a schema one id."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    texts: dict[int, str] = {}
    while (message := consumer.poll(30)) is not None:
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        value = json.loads(message.value() or b"{}")
        if "schema" in value:
            assert texts.setdefault(value["id"], value["schema"]) == value["schema"]
    consumer.close()
    assert len(set(texts.values())) == len(texts)
