"""Encryption by nodes, with a file of keys: nothing that lies on a disk shows a record, a killed
node recovers, readers and commands need the key, and the key may be changed.
"""

import json
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

import lakehead
from bench.process import ServerFailed
from lakehead.broker.cluster.broker_lifecycle import refuse_early_encryption
from lakehead.broker.node import start_node
from lakehead.broker.setting_sources import load
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.errors import KeyUnavailable, NotEncrypted, SettingsError
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.node_client import Client, close_clients
from tests.support.supervised import supervised
from tests.support.topic_clients import Produced, consume, make_topic
from tests.support.traffic import IDEMPOTENT, ProducerThread, create_topic, read_log
from tests.support.waiting import wait_until
from tests.support.wire import Batch

MARK = b"4111-1111-1111-1111"
COUNT = 200


def flags(keys: Path, wal: str, provider: str = "file") -> tuple[str, ...]:
    given = ("--encryption.key.provider", provider, "--encryption.key.file", str(keys))
    return (*HASTY, *given, *(("--wal", wal) if wal else ()))


def showing(folder: Path, text: bytes) -> list[str]:
    """Return the files below a folder that show a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if text in path.read_bytes()]


def produce(broker: BrokerProcess, values: range) -> None:
    produced = Produced(broker.server)
    for number in values:
        assert produced("cards", value=MARK + b"-%d" % number) is None


def values(broker: BrokerProcess, count: int) -> list[bytes]:
    return [message.value() or b"" for message in consume(broker.server, "cards", count)]


def scanned(folder: Path, encryption: dict[str, str] | None = None) -> list[bytes]:
    scan = lakehead.scan(f"{folder}/data/store", "cards", encryption=encryption)
    return [bytes(value) for value in scan.read_all()["value"].to_pylist()]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    path = tmp_path / "secrets" / "keys"
    add_key(path, "first", rng=random.Random(1))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "broker").mkdir()
    return tmp_path / "broker"


@pytest.mark.parametrize("wal", ["", "object:"], ids=["block", "object"])
def test_no_disk_shows_a_record_and_a_killed_node_recovers(
    folder: Path, keys: Path, wal: str
) -> None:
    broker = BrokerProcess(folder, flags(keys, wal))
    broker.start()
    try:
        make_topic(broker.server, "cards")
        produce(broker, range(COUNT))
        broker.kill()
        assert showing(folder, MARK) == []
        assert showing(folder / "data", b"cards") == [], "not even a topic's name"
        broker.start()
        expected = [MARK + b"-%d" % number for number in range(COUNT)]
        assert values(broker, COUNT) == expected
        assert broker.stop() == 0
        options = {"encryption.key.provider": "file", "encryption.key.file": str(keys)}
        assert scanned(folder, options) == expected
        assert showing(folder, MARK) == []
    finally:
        broker.kill()


def test_nodes_of_a_machine_recover_each_other(tmp_path: Path, keys: Path) -> None:
    """One of two is killed under a producer, which notices nothing; maintenance runs beside."""
    given = ("--encryption.key.provider", "file", "--encryption.key.file", str(keys))
    with supervised(tmp_path, 2, "--offsets.topic.num.partitions", "2", *given) as nodes:
        nodes.wait_ready()
        bootstrap, history = ",".join(nodes.addresses), History()
        create_topic(bootstrap, "cards", 4)
        producer = ProducerThread(
            "cards",
            bootstrap,
            "cards",
            partitions=4,
            history=history,
            config=IDEMPOTENT,
            records_per_s=200,
        )
        producer.start()
        for node_id in (0, 1):
            mark = producer.acknowledged + 100
            assert wait_until(lambda m=mark: producer.acknowledged >= m, 60)  # type: ignore[misc]
            os.kill(nodes.pids(node_id)[-1], signal.SIGKILL)
            assert wait_until(lambda n=node_id: nodes.lives_ready(n) == 2, 60), nodes.log  # type: ignore[misc]
        mark = producer.acknowledged + 100
        assert wait_until(lambda: producer.acknowledged >= mark, 60)
        assert producer.finish() == 0
        log = read_log(bootstrap, "cards", 4)
        assert violations(history, log) == []
        assert showing(nodes.data, b"cards") == []
        assert "maintenance_ended" not in nodes.log, "it got the key"


def test_a_node_with_a_missing_or_wrong_key_does_not_start_and_says_why(
    folder: Path, keys: Path, tmp_path: Path
) -> None:
    broker = BrokerProcess(folder, flags(keys, ""))
    broker.start()
    broker.kill()
    nowhere, wrong, other = (tmp_path / name for name in ("nowhere", "wrong", "other"))
    add_key(wrong, "first", rng=random.Random(2))
    add_key(other, "other", rng=random.Random(3))
    for given, words in (
        (HASTY, r"is encrypted by the key 'first': set encryption\.key\.provider"),
        (flags(nowhere, ""), f"cannot read the key file {nowhere}"),
        (flags(wrong, ""), f"cannot decrypt meta/.*'first' in {wrong} is another one"),
        (flags(other, ""), f"cannot decrypt meta/.*'first' is not in {other}"),
        ((*HASTY, "--encryption.key.provider", "kms"), r"kms needs encryption\.kms\.key"),
        ((*HASTY, "--encryption.key.provider", "vault"), r"'vault' is not one of"),
    ):
        refused = BrokerProcess(folder, given)
        with pytest.raises(ServerFailed):
            refused.start()
        assert refused.exit_status != 0
        assert re.search(words, refused.log), refused.log
        assert "Traceback" not in refused.log
    broker.start()
    assert broker.stop() == 0


def test_plain_data_are_refused_once_encryption_is_required(folder: Path, keys: Path) -> None:
    required = (*flags(keys, ""), "--encryption.required", "true")
    options = {"encryption.key.provider": "file", "encryption.key.file": str(keys)}
    options["encryption.required"] = "true"
    broker = BrokerProcess(folder, HASTY)
    broker.start()
    make_topic(broker.server, "cards")
    produce(broker, range(10))
    assert broker.stop() == 0
    refused = BrokerProcess(folder, required)
    with pytest.raises(ServerFailed):
        refused.start()
    assert re.search(r"meta/\S+ is not encrypted, and encryption\.required is true", refused.log)
    assert "Traceback" not in refused.log
    with pytest.raises(NotEncrypted, match=r"meta/\S+ is not encrypted"):
        scanned(folder, options)
    alone = BrokerProcess(folder, (*HASTY, "--encryption.required", "true"))
    with pytest.raises(ServerFailed):
        alone.start()
    assert r"encryption.required=true needs encryption.key.provider" in alone.log


def test_a_cluster_that_is_encrypted_from_its_beginning_runs_where_that_is_required(
    folder: Path, keys: Path
) -> None:
    required = (*flags(keys, ""), "--encryption.required", "true")
    options = {"encryption.key.provider": "file", "encryption.key.file": str(keys)}
    options["encryption.required"] = "true"
    broker = BrokerProcess(folder, required)
    broker.start()
    try:
        make_topic(broker.server, "cards")
        produce(broker, range(10))
        broker.kill()
        broker.start()
        expected = [MARK + b"-%d" % number for number in range(10)]
        assert values(broker, 10) == expected
        assert broker.stop() == 0
        assert scanned(folder, options) == expected
        assert "maintenance_ended" not in broker.log, "it has the setting, too"
    finally:
        broker.kill()


def test_encryption_is_turned_on_rotated_and_turned_off_without_losing_a_record(
    folder: Path, keys: Path
) -> None:
    def plain() -> tuple[str, ...]:
        return HASTY

    def encrypted() -> tuple[str, ...]:
        return flags(keys, "")

    def rotated() -> tuple[str, ...]:
        add_key(keys, "second", rng=random.Random(2))
        return flags(keys, "")

    def off() -> tuple[str, ...]:
        return flags(keys, "", provider="none")

    steps: list[Callable[[], tuple[str, ...]]] = [plain, encrypted, rotated, off]
    store = folder / "data" / "store" / "data"
    for number, step in enumerate(steps):
        broker = BrokerProcess(folder, step())
        broker.start()
        try:
            if not number:
                make_topic(broker.server, "cards")
            before = len(list(store.rglob("*")))
            produce(broker, range(number * 10, number * 10 + 10))
            assert wait_until(lambda b=before: len(list(store.rglob("*"))) > b, 30)  # type: ignore[misc]
            seen = values(broker, number * 10 + 10)
            assert seen == [MARK + b"-%d" % n for n in range(number * 10 + 10)]
        finally:
            broker.kill()
    data = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
    for id_ in (b"first", b"second"):
        assert any(id_ in body[-512:] for body in data), id_
    shown = [body for body in data if MARK in body]
    assert any(MARK + b"-0" in body for body in shown)
    assert any(MARK + b"-30" in body for body in shown)
    assert not any(MARK + b"-1%d" % n in body for body in shown for n in range(10))


def test_commands_and_scans_need_the_key(
    folder: Path,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = BrokerProcess(folder, flags(keys, ""))
    broker.start()
    try:
        make_topic(broker.server, "cards")
        produce(broker, range(10))
    finally:
        assert broker.stop() == 0
    place, command = str(folder / "data"), CommandLine(monkeypatch, capsys)
    key = next(
        f"data/{path.parent.name}/{path.name}"
        for path in (folder / "data" / "store" / "data").rglob("*-*")
    )
    for arguments in (
        ("inspect", "state", "--path", place),
        ("inspect", "object", key, "--path", place),
        ("verify", "--path", place),
        ("leak-check", "--path", place),
    ):
        refusal = command(*arguments)
        assert refusal.status == 1, arguments
        assert len(refusal.err.splitlines()) == 1, refusal.err
        assert re.search(
            r"^lakehead: .* is encrypted by the key 'first': set encryption\.key\.provider",
            refusal.err,
        )
        fragment = f"#encryption.key.provider=file&encryption.key.file={keys}"
        done = command(*arguments[:-1], place + fragment)
        assert done.status == 0, done.err
    with pytest.raises(KeyUnavailable, match="set encryption"):
        scanned(folder)
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_PROVIDER", "file")
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_FILE", str(keys))
    shown = command("inspect", "object", key, "--path", place, "--json")
    assert shown.status == 0
    assert "cards" in shown.out
    wal = command("inspect", "wal", str(folder / "data" / "wal"))
    assert wal.status == 0, wal.err
    assert command("verify", "--path", place).status == 0
    assert command("compact-objects", "--count", "2", "--path", place).status == 0
    assert scanned(folder) == [MARK + b"-%d" % number for number in range(10)]
    assert showing(folder / "data", MARK) == [], "jobs encrypt, too"


def test_objects_of_an_older_key_are_rewritten_by_a_job(
    folder: Path,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Some objects are plain, some have the older key; in the end all have the newest one, and
    without keys the older one opens nothing that a reader needs.
    """
    for number, given in enumerate((HASTY, flags(keys, ""))):
        broker = BrokerProcess(folder, given)
        broker.start()
        try:
            if not number:
                make_topic(broker.server, "cards")
            produce(broker, range(number * 10, number * 10 + 10))
        finally:
            assert broker.stop() == 0
    add_key(keys, "second", rng=random.Random(2))
    place, command = ("--path", str(folder / "data")), CommandLine(monkeypatch, capsys)

    def counted() -> dict[str, int]:
        shown = command("inspect", "keys", *place, "--json")
        assert shown.status == 0, shown.err
        rows = [json.loads(line) for line in shown.out.splitlines()]
        return {row["key"]: row["data"] for row in rows if row["data"]}

    before = counted()
    assert set(before) == {"none", "file:first"}
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_PROVIDER", "file")
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_FILE", str(keys))
    done = command("compact-objects", "--reencrypt", *place)
    assert done.status == 0, done.err
    done = command("sweep", "--yes", "--grace", "0", *place)
    assert done.status == 0, done.err
    assert set(counted()) == {"file:second"}
    assert scanned(folder) == [MARK + b"-%d" % number for number in range(20)]
    assert command("verify", *place).status == 0
    again = command("compact-objects", "--reencrypt", "--dry-run", *place)
    assert again.status == 0
    assert "stream" not in again.out, "nothing is left to do"
    assert showing(folder / "data" / "store" / "data", MARK) == []


async def test_a_damaged_chunk_harms_no_other_partition(keys: Path) -> None:
    store = MemoryStore()
    given = {
        "port": 0,
        "store": "memory:",
        "wal": "memory:?size=64MiB",
        "encryption.key.provider": "file",
        "encryption.key.file": str(keys),
    }
    value = random.Random(1).randbytes(200_000)
    node = await start_node(load(given), store=store)
    try:
        await node.replication_control.create("t", 2)
        client = await Client.connect(node)
        for partition in (0, 1):
            client.produce(Batch(values=(value,)).encode(), partition=partition)
            assert (await client.produced())[0] == 0
    finally:
        await close_clients()
        await node.close()
    (damaged,) = (key for key, body in store.objects.items() if len(body) > 2 * len(value))
    body = bytearray(store.objects[damaged])
    body[1000] ^= 1
    store.objects[damaged] = bytes(body)
    node = await start_node(load(given), store=store)
    try:
        client = await Client.connect(node)
        client.fetch({0: 0, 1: 0})
        found = await client.fetched()
        assert found[0].error_code != ErrorCode.none
        assert found[1].error_code == ErrorCode.none
        assert value in bytes(found[1].records or b"")
        client.produce(Batch(values=(b"more",)).encode(), partition=0)
        assert (await client.produced())[0] == 0, "the damaged partition takes records"
        assert node.failure is None
    finally:
        await close_clients()
        await node.close()


def test_a_key_file_is_made_and_rotated_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, path = CommandLine(monkeypatch, capsys), tmp_path / "keys"
    assert "is the first, before 0 others" in command("encryption-key", str(path)).out
    done = command("encryption-key", str(path), "--id", "two")
    assert f"{path}: key two is the first, before 1 others" in done.out
    assert len(done.out.splitlines()) == 1, "no key is shown"
    assert "has a key 'two'" in command.fails("encryption-key", str(path), "--id", "two")
    assert "cannot write" in command.fails("encryption-key", str(tmp_path / "no" / "keys"))


def test_a_cluster_that_older_releases_read_is_not_encrypted() -> None:
    """An unset level is the first one."""
    old = MetadataImage(cluster_id="c")
    with pytest.raises(SettingsError, match=r"needs metadata\.version 2, .* at 1: .*upgrade"):
        refuse_early_encryption(old, EncryptionSettings(provider="file", key_file="/k"))
    refuse_early_encryption(old, EncryptionSettings(key_file="/k"))
    refuse_early_encryption(MetadataImage(), EncryptionSettings(provider="file", key_file="/k"))
