"""`forget`: every record of a key goes from a topic, its tables and dead letters; a certificate
says so, and a check reads everything again.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable, write_deltalake

import lakehead
from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs import forget as forget_module
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.attest_result import AttestResult, verdict
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget import NotUploaded
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.lake.jobs.table_lease import TableLeases, TableTaken
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.range_digests import DIGESTS, FORGOTTEN, held_digests
from lakehead.storage.certificates import Certificate, Certificates
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.log_compaction import LogCompaction, LogCompactionSettings
from lakehead.storage.compaction.object_compaction import ObjectCompaction
from lakehead.storage.compaction.object_compaction_plan import MergeItem
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.errors import NotFound, RequestRefused, SettingsError, UnknownTopic
from lakehead.storage.failpoints import KILLED
from lakehead.storage.jobs.cluster import in_cluster
from lakehead.storage.jobs.job import plan_job, results_of, run_job
from lakehead.storage.jobs.rebuild_catalog import JOB as REBUILD_CATALOG
from lakehead.storage.jobs.rebuild_catalog import RebuildOptions
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import TrimStream
from lakehead.storage.object_store import ObjectStore
from tests.support.declared_topics import configure, delete_topic
from tests.support.record_batches import TestRecord
from tests.support.small_groups import inflate_little
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic

KEY = b"customer-7"
RECORDS = 40


def record(number: int, key: bytes | None = None) -> TestRecord:
    """An order of one of eleven customers, in which every tenth cannot be read."""
    value = json.dumps({"id": number, "price": number / 7}).encode()
    return TestRecord(
        offset=0,
        timestamp=1_700_000_000_000 + number,
        key=key or b"customer-%d" % (number % 11),
        value=value if number % 10 else b"{broken",
    )


def write(root: Path, first: int = 0, *, codec: str = "none", topic: str = "orders") -> None:
    records = [record(number) for number in range(first, first + RECORDS)]
    write_topic(root, topic, {0: records, 1: records}, partitions=2, batch_records=7, codec=codec)


def declare(root: Path, **configs: str) -> None:
    named = {"enable": "true", "value.format": "json", "on.error": "dead_letter"}
    named |= {name.replace("_", "."): text for name, text in configs.items()}
    configure(root, "orders", {f"{PREFIX}{name}": text for name, text in named.items()})


def refresh(root: Path) -> None:
    tables = DeclaredTables(str(root))
    try:
        tables.catch_up(all_of_them=True, on_table=_check_outcome)
    finally:
        tables.close()


def _check_outcome(outcome: Any) -> None:
    assert outcome.error is None, outcome.error


def forget(root: Path, *keys: str, **options: Any) -> ForgetResult:
    chosen = keys or (KEY.decode(),)
    given: dict[str, Any] = {"topic": "orders", "keys": chosen, "requested_by": "anna"}
    return run_job(FORGET, str(root), ForgetOptions(**given | options))


def checked(root: Path, number: int = 1, **options: Any) -> ForgetResult:
    given: dict[str, Any] = {"topic": "orders", "check": number}
    return run_job(FORGET, str(root), ForgetOptions(**given | options))


def sweep(root: Path) -> None:
    run_job(SWEEP, str(root), SweepOptions(grace_s=0, margin_s=0))


def vacuum(root: Path) -> None:
    """Delete files as VACUUM does after seven days."""
    for place in ("orders", "orders__dlq"):
        delta = DeltaTable(root.parent / "tables" / place)
        delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def records_of(root: Path) -> list[tuple[int, int, bytes]]:
    rows = lakehead.scan(str(root), "orders").read_all().to_pylist()
    return sorted((row["partition"], row["offset"], row["key"]) for row in rows)


def rows_of(root: Path, name: str = "orders") -> list[tuple[int, int, bytes]]:
    rows = DeltaTable(root.parent / "tables" / name).to_pyarrow_table().to_pylist()
    return sorted((row["_partition"], row["_offset"], row["_key"]) for row in rows)


def certificate(root: Path, number: int = 1) -> Certificate:
    reader = store_reader(str(root))
    found = reader.run(Certificates(reader.store, random.Random(1)).certificate(number))
    assert found is not None
    return found


def attested(root: Path, **options: Any) -> AttestResult:
    return run_job(ATTEST, str(root), AttestOptions(topic="orders", **options))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `orders`, two partitions, two objects."""
    root = tmp_path / "store"
    write(root)
    write(root, RECORDS, codec="zstd")
    return root


@pytest.fixture
def tabled(root: Path) -> Path:
    """The same, with a table of the first object and one of both."""
    declare(root)
    refresh(root)
    write(root, 2 * RECORDS)
    refresh(root)
    return root


def test_a_run_that_lost_its_lease_brings_no_forgotten_record_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the records for its next commits when another process gets the table."""
    declare(root, mode="upsert", scd="2")
    inflate_little(monkeypatch, 500)
    settings_of = DeclaredTables._settings

    def small(*given: Any, **more: Any) -> MaterializeSettings:
        return replace(settings_of(*given, **more), merge_bytes=8)

    monkeypatch.setattr(DeclaredTables, "_settings", small)
    tables = DeclaredTables(str(root))
    (kept,) = tables._fresh(tables._leases.catalog(), _check_outcome)

    def turn() -> None:
        catalog, reader = tables._look()
        _check_outcome(tables._turn(catalog, reader, kept, [kept]))

    try:
        turn()
        assert kept.run is not None
        assert kept.run._commits
        tables._leases.release(kept.declared.topic_id)
        forget(root)
        turn()
        while kept.has_more:
            turn()
    finally:
        tables.close()
    held = rows_of(root)
    assert len(held) > RECORDS
    assert [one for one in held if one[2] == KEY] == []


def test_no_reader_finds_the_records_and_all_others_are_where_they_were(root: Path) -> None:
    before = records_of(root)
    result = forget(root)
    assert result.records == sum(key == KEY for _, _, key in before) > 10
    assert (result.objects, result.rows, result.unreadable) == (2, 0, ())
    assert records_of(root) == [one for one in before if one[2] != KEY]
    report = run_job(VERIFY, str(root))
    assert not report.damages


@pytest.mark.parametrize("way", ["merged", "compacted", "trimmed"])
def test_copies_in_objects_that_other_topics_read_go_too(root: Path, way: str) -> None:
    """An object of two topics stays for one of them when the records of the other were merged into
    another object, compacted or trimmed: with records that no reader of the topic finds there.
    """
    write(root, topic="others")
    others = lakehead.scan(str(root), "others").read_all().to_pylist()

    async def leave_copies(store: ObjectStore, log: MetadataLog) -> str:
        async def merge(streams: Iterable[int]) -> None:
            sources = tuple(key for key, one in log.state.objects.items() if one.stream_ids)
            item = MergeItem(sources=sources, streams=tuple(streams), size=0)
            done = await ObjectCompaction(store, log, SystemClock(), rng, item).run()
            assert done.is_done

        rng = random.Random(3)
        topics = log.state.topics
        await merge(log.state.streams)
        (shared,) = (key for key, one in log.state.objects.items() if one.stream_ids)
        if way == "merged":
            await merge(topics["orders"].partitions)
        for stream_id in topics["orders"].partitions:
            if way == "compacted":
                settings = LogCompactionSettings(until_ms=1 << 62, delete_retention_ms=0)
                await LogCompaction(
                    store, log, SystemClock(), rng, stream_id=stream_id, settings=settings
                ).run()
            elif way == "trimmed":
                end = log.state.stream(stream_id).end_offset
                trim = TrimStream(stream_id=stream_id, start_offset=end, drops_state=True)
                await log.commit([trim])
        assert log.state.objects[shared].stream_ids == {*topics["others"].partitions}
        return shared

    shared = in_cluster(str(root), "test", leave_copies)
    result = forget(root)
    assert shared in {one.before.key for one in certificate(root).objects}
    sweep(root)
    found = checked(root)
    assert (found.held, found.pending) == ((), ())
    assert "holds" in found.verdict
    assert result.records == certificate(root).records
    assert lakehead.scan(str(root), "others").read_all().to_pylist() == others
    assert not run_job(VERIFY, str(root)).damages


def test_it_ends_though_nodes_upload_all_the_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy cluster has new objects of several partitions before all others were looked at."""
    looks: list[int] = []

    def uploading(*given: Any, **named: Any) -> Iterator[Any]:
        looks.append(1)
        write(root, topic="others")
        yield from results_of(*given, **named)

    monkeypatch.setattr(forget_module, "results_of", uploading)
    assert forget(root).records > 0
    assert len(looks) == 2
    assert KEY not in {key for _, _, key in records_of(root)}
    assert checked(root).held == ()


def test_an_object_that_another_topic_has_lost_does_not_stop_it(root: Path) -> None:
    own = {one.name for one in (root / "data").rglob("*") if one.is_file()}
    write(root, topic="others")
    (lost,) = (one for one in (root / "data").rglob("*") if one.is_file() and one.name not in own)
    lost.unlink()
    assert forget(root).records > 0
    assert KEY not in {key for _, _, key in records_of(root)}


def test_the_keys_are_those_that_were_approved(root: Path, tmp_path: Path) -> None:
    """A dry run and the run read the same file, and it may be another one by then."""
    names = tmp_path / "keys"
    names.write_bytes(KEY + b"\n")
    options = ForgetOptions(topic="orders", keys=(f"@{names}",))
    approved = plan_job(FORGET, str(root), options).found.keys_digest
    assert len(approved) == 32
    names.write_bytes(b"customer-8\n" + KEY + b"\n")
    before = records_of(root)
    with pytest.raises(RequestRefused, match="not those that were approved"):
        forget(root, f"@{names}", approved_keys=approved)
    assert records_of(root) == before
    assert not (root / "forget").exists()
    names.write_bytes(KEY)
    done = forget(root, f"@{names}", approved_keys=approved)
    assert (done.keys_digest, done.records > 0) == (approved, True)


def test_a_key_in_a_file_may_have_what_python_takes_for_the_end_of_a_line(
    root: Path, tmp_path: Path
) -> None:
    odd = "customer-7\x0bcustomer-8\x85".encode()
    write_topic(root, "orders", {0: [record(500, odd)]}, partitions=2)
    names = tmp_path / "keys"
    names.write_bytes(odd + b"\r\n\n")
    before = records_of(root)
    assert forget(root, f"@{names}").records == 1
    assert records_of(root) == [one for one in before if one[2] != odd]


def test_a_certificate_says_what_was_done_and_has_no_key(root: Path) -> None:
    result = forget(root)
    held = certificate(root)
    assert (held.request.topic, held.request.requested_by) == ("orders", "anna")
    assert held.records == result.records
    assert [(one.partition, one.start, one.end) for one in held.request.ranges] == [
        (0, 0, 80),
        (1, 0, 80),
    ]
    assert len(held.objects) == 2
    assert all(one.before.sha256 != one.after[0].sha256 for one in held.objects)
    assert held.fault("") == ""
    assert msgspec.structs.replace(held, records=0).fault("") != ""
    for path in (root / "forget").rglob("*.json"):
        assert KEY not in path.read_bytes()


def test_a_check_is_pending_until_the_old_objects_are_deleted(root: Path) -> None:
    forget(root)
    found = checked(root)
    assert not found.held
    assert [one.partition(":")[0] for one in found.pending] == [
        one.before.key for one in certificate(root).objects for _ in range(2)
    ]
    assert ", from 2" in found.pending[0]
    assert "is pending" in found.verdict
    sweep(root)
    for keys in ((), (KEY.decode(),)):
        found = checked(root, keys=keys)
        assert (found.held, found.pending) == ((), ())
        assert found.verdict == (
            "certificate 1 holds: nothing in the bucket has a record of its keys"
        )
        assert found.bytes_read > 0


def test_status_of_the_commands(root: Path) -> None:
    path = ("--path", str(root.parent))
    done = lakehead_command("forget", "orders", "--yes", "--key", KEY.decode(), *path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certificate"] == "1"
    pending = lakehead_command("forget", "orders", "--check", "1", *path)
    assert pending.returncode == 1
    assert "is pending" in pending.stdout
    sweep(root)
    clean = lakehead_command("forget", "orders", "--check", "1", *path)
    assert clean.returncode == 0, clean.stdout
    assert "certificate 1 holds" in clean.stdout
    missing = lakehead_command("forget", "orders", "--check", "2", *path)
    assert missing.returncode == 1
    assert "has no forget/0000000002/request.json" in missing.stderr


def test_a_check_finds_what_a_certificate_hides(root: Path) -> None:
    """A copy of an old object that is put back in place of nothing: an orphan of a killed job."""
    forget(root)
    old = certificate(root).objects[0].before.key
    body = (root / old).read_bytes()
    sweep(root)
    assert not checked(root).pending
    (root / old).write_bytes(body)
    found = checked(root)
    assert len(found.pending) == 2
    assert "it is not committed" in found.pending[0]


def test_a_dry_run_says_what_would_be_done(tabled: Path) -> None:
    planned = plan_job(FORGET, str(tabled), ForgetOptions(topic="orders", keys=(KEY.decode(),)))
    assert planned.found is not None
    fields = planned.found.as_fields()
    done = forget(tabled)
    for name in ("records", "batches", "objects", "rows", "tables"):
        assert fields[name] == getattr(done, name) > 0, name
    assert fields["bytes_rewritten"] > done.bytes_rewritten > 0
    assert "dollars" in fields["dollars"]
    assert fields["ranges_count"] == 2


def test_a_dry_run_writes_no_file(tabled: Path) -> None:
    def files() -> list[Path]:
        return sorted(path for path in tabled.parent.rglob("*") if path.is_file())

    before = files()
    plan_job(FORGET, str(tabled), ForgetOptions(topic="orders", keys=(KEY.decode(),)))
    assert files() == before


def test_rows_and_dead_letters_go_and_attest_knows_the_certificate(tabled: Path) -> None:
    version = DeltaTable(tabled.parent / "tables/orders").version()
    before, letters = rows_of(tabled), rows_of(tabled, "orders__dlq")
    assert {KEY} < {key for _, _, key in before}
    assert {KEY} < {key for _, _, key in letters}
    result = forget(tabled)
    assert result.rows == sum(key == KEY for _, _, key in before + letters)
    assert rows_of(tabled) == [one for one in before if one[2] != KEY]
    assert rows_of(tabled, "orders__dlq") == [one for one in letters if one[2] != KEY]
    now = attested(tabled)
    assert now.found() == ()
    assert (now.digests, now.forgotten_ranges) == (4, 4)
    assert verdict(now.as_fields()) == (
        "the table is its topic, row for row; records were forgotten by certificate 1"
    )
    then = attested(tabled, version=version)
    assert then.found() == ()
    assert then.forgotten_rows == sum(key == KEY for _, _, key in before)
    assert verdict(then.as_fields()).endswith("records were forgotten by certificate 1")


def _change_note(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the notes of the commit that notes a certificate."""
    for path in (root.parent / "tables/orders/_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for note in (one.get("commitInfo", {}) for one in actions):
            if FORGOTTEN in note:
                change(note)
                path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


@pytest.mark.parametrize("number", [7, 2, 0, -1])
def test_a_certificate_that_is_invented_or_of_another_topic_explains_no_digest(
    tabled: Path, number: int
) -> None:
    forget(tabled)
    if number == 2:
        write(tabled, topic="others")
        assert forget(tabled, topic="others").certificate == "2"
    salt = json.dumps({"certificate": number, "salt": ""})
    _change_note(tabled, lambda note: note.update({FORGOTTEN: salt}))
    found = attested(tabled).found()
    assert len(found) == 4
    reason = "it is about other records" if number == 2 else "the bucket does not have it"
    words = f"certificate {max(number, 0)} does not explain the new digest of a commit: {reason}"
    assert {one.what for one in found} == {words}
    assert len(attested(tabled, sample_percent=1).found()) == 4


@pytest.mark.parametrize("is_there", [True, False])
def test_a_certificate_that_was_changed_or_deleted_explains_no_digest(
    tabled: Path, is_there: bool
) -> None:
    forget(tabled)
    (path,) = (tabled / "forget").rglob("certificate.json")
    if is_there:
        path.write_text(path.read_text().replace('"finished_by":"', '"finished_by":"x'))
    else:
        path.unlink()
    reason = "the certificate was changed: " if is_there else "the bucket does not have it"
    found = attested(tabled).found()
    assert len(found) == 4
    assert all(reason in one.what for one in found)


def test_a_certificate_explains_no_digest_of_ranges_that_it_did_not_change(tabled: Path) -> None:
    forget(tabled, until="0:10,1:20")
    assert attested(tabled).found() == ()
    table = open_table(str(tabled.parent / "tables/orders"))
    assert table is not None
    others = [one for one in held_digests(table) if one.certificate < 0]
    assert len(others) == 2

    def add_others(note: dict[str, Any]) -> None:
        digests = json.loads(note[DIGESTS])
        digests["ranges"] += [
            [one.partition, one.first, one.end, one.records, one.digest] for one in others
        ]
        note[DIGESTS] = json.dumps(digests)

    _change_note(tabled, add_others)
    found = attested(tabled).found()
    assert [(one.partition, one.first) for one in found] == [
        (one.partition, one.first) for one in others
    ]
    assert all("it is about other records" in one.what for one in found)


def test_a_row_without_a_record_is_still_a_difference_beside_forgotten_ones(tabled: Path) -> None:
    version = DeltaTable(tabled.parent / "tables/orders").version()
    delta = DeltaTable(tabled.parent / "tables/orders")
    rows = delta.to_pyarrow_table(filters=[("_offset", "=", 1), ("_partition", "=", 0)])
    write_deltalake(delta, rows, mode="append")
    forget(tabled)
    assert len(attested(tabled, version=version + 1).found()) == 1


def test_neither_the_keys_nor_their_rows_are_in_new_entries_of_the_tables_log(tabled: Path) -> None:
    log = tabled.parent / "tables/orders/_delta_log"
    before = set(log.iterdir())
    forget(tabled)
    new = [path.read_bytes() for path in set(log.iterdir()) - before]
    assert len(new) == 2
    assert not any(KEY in text or KEY.hex().encode() in text for text in new)


def test_old_files_of_tables_are_pending_until_vacuum_deletes_them(tabled: Path) -> None:
    forget(tabled)
    sweep(tabled)
    found = checked(tabled)
    assert not found.held
    assert len(found.pending) >= 3
    assert all("deleted by lakehead vacuum, from 2" in one for one in found.pending)
    vacuum(tabled)
    assert checked(tabled).verdict.startswith("certificate 1 holds")


@pytest.mark.parametrize("scd", ["1", "2"])
def test_a_table_by_upsert_loses_the_row_and_its_history(root: Path, scd: str) -> None:
    declare(root, mode="upsert", scd=scd)
    refresh(root)
    assert KEY in {key for _, _, key in rows_of(root)}
    forget(root)
    assert KEY not in {key for _, _, key in rows_of(root)}
    assert attested(root).found() == ()
    write(root, 2 * RECORDS)
    refresh(root)
    assert KEY in {key for _, _, key in rows_of(root)}
    assert attested(root).found() == ()


def test_a_table_in_partitions_and_one_that_is_made_later(root: Path) -> None:
    declare(root, partition_by="day(_timestamp)")
    refresh(root)
    forget(root)
    assert KEY not in {key for _, _, key in rows_of(root)}
    assert attested(root).found() == ()
    tables = DeclaredTables(str(root))
    tables.rebuild("orders", without_history=True)
    tables.close()
    assert KEY not in {key for _, _, key in rows_of(root)}
    assert attested(root).found() == ()


PLACES = (
    *("forget_objects_written", "forget_step_noted", "forget_committed", "forget_committed:2"),
    *("metadata_entry_planned", "metadata_entry_put:2"),
    *("forget_rows_deleted", "forget_table_noted", "forget_table_noted:2", "forget_certified"),
)


@pytest.mark.parametrize("name", PLACES)
def test_killed_anywhere_it_ends_as_without_a_kill(tabled: Path, name: str) -> None:
    before, rows = records_of(tabled), rows_of(tabled)
    command = ("forget", "orders", "--yes", "--key", KEY.decode(), "--path", str(tabled.parent))
    assert lakehead_command(*command, failpoint=name).returncode == KILLED
    left = records_of(tabled)
    assert [one for one in left if one[2] != KEY] == [one for one in before if one[2] != KEY]
    again = lakehead_command(*command)
    assert again.returncode == 0, again.stderr
    assert records_of(tabled) == [one for one in before if one[2] != KEY]
    assert rows_of(tabled) == [one for one in rows if one[2] != KEY]
    number = 2 if name == "forget_certified" else 1
    held = certificate(tabled)
    assert held.records == len(before) - len(records_of(tabled))
    assert len(held.objects) == 3
    assert len(list((tabled / "forget").glob("0*"))) == number
    assert attested(tabled).found() == ()
    assert not run_job(VERIFY, str(tabled)).damages
    found = checked(tabled, number)
    assert not found.held
    sweep(tabled)
    vacuum(tabled)
    left_over = [one for one in checked(tabled).pending if "it is not committed" not in one]
    assert left_over == []


def test_a_key_that_is_written_again_is_counted_and_stays(root: Path) -> None:
    forget(root)
    sweep(root)
    write_topic(root, "orders", {0: [record(1, KEY)] * 3}, partitions=2)
    found = checked(root)
    assert (found.held, found.pending, found.later) == ((), (), 3)
    assert found.verdict.startswith("certificate 1 holds")
    assert forget(root).certificate == "2"
    sweep(root)
    assert (checked(root, 2).later, checked(root, 2).pending) == (0, ())


def test_a_key_that_is_not_there_gets_a_certificate_of_that(root: Path) -> None:
    objects = sorted((root / "data").rglob("*"))
    result = forget(root, "nobody")
    assert (result.records, result.objects, result.certificate) == (0, 0, "1")
    assert sorted((root / "data").rglob("*")) == objects
    assert checked(root).verdict.startswith("certificate 1 holds")


def test_keys_are_given_as_text_digits_and_lines_of_a_file(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"customer-3\nhex:{b'customer-4'.hex()}\n\n")
    forget(root, f"@{file}", f"hex:{KEY.hex()}", "customer-5")
    gone = {b"customer-3", b"customer-4", b"customer-5", KEY}
    assert not gone & {key for _, _, key in records_of(root)}
    assert len(certificate(root).request.hashes) == 4


def test_offsets_are_waited_for_and_later_records_stay(root: Path) -> None:
    with pytest.raises(NotUploaded, match=r"partition 1: 80 of 90\): nodes upload them"):
        forget(root, until="0:10,1:90", upload_wait_s=0)
    assert not (root / "forget").exists()
    forget(root, until="0:10,1:20")
    assert {(p, o) for p, o, key in records_of(root) if key == KEY} == {
        (p, o) for p, o in ((p, o) for p in (0, 1) for o in range(80)) if o % 11 == 7
    } - {(0, 7), (1, 7), (1, 18)}


def test_wrong_input_is_refused_in_one_line(root: Path, tmp_path: Path) -> None:
    options: list[tuple[type[Exception], str, Mapping[str, Any]]] = [
        (UnknownTopic, "topic 'other' does not exist", {"topic": "other"}),
        (RequestRefused, "the brokers' own", {"topic": "__consumer_offsets"}),
        (SettingsError, "is not a key in hexadecimal digits", {"keys": ("hex:xy",)}),
        (SettingsError, "cannot read /nowhere", {"keys": ("@/nowhere",)}),
        (SettingsError, "has no partition 5", {"until": "5:1"}),
        (SettingsError, "give offsets of partitions as", {"until": "now"}),
        (NotFound, "has no forget/0000000009/request.json", {"check": 9}),
    ]
    for kind, words, given in options:
        with pytest.raises(kind, match=words):
            forget(root, **given)
    with pytest.raises(SettingsError, match="name a key with --key"):
        run_job(FORGET, str(root), ForgetOptions(topic="orders"))
    forget(root)
    write(root, topic="payments")
    with pytest.raises(SettingsError, match="is about topic orders, not payments"):
        checked(root, topic="payments")
    with pytest.raises(SettingsError, match="1 of the keys are not among those of certificate 1"):
        checked(root, keys=("customer-8",))


def test_without_the_salt_a_check_needs_the_keys(root: Path) -> None:
    forget(root)
    for salt in (root / "forget/salts").iterdir():
        salt.unlink()
    with pytest.raises(SettingsError, match="the salt of certificate 1 was deleted"):
        checked(root)
    assert "is pending" in checked(root, keys=(KEY.decode(),)).verdict


def test_a_changed_certificate_does_not_hold(root: Path) -> None:
    forget(root)
    sweep(root)
    (path,) = (root / "forget").rglob("certificate.json")
    path.write_text(path.read_text().replace('"finished_by":"', '"finished_by":"x'))
    assert checked(root).held == ("the certificate was changed: its SHA-256 is another one",)


def test_a_table_of_another_make_is_left_and_named(tabled: Path) -> None:
    """The objects are done by then; the same command goes on once the place is right."""
    path = tabled.parent / "tables/orders"
    other = DeltaTable(path).to_pyarrow_table().drop_columns(["_key"])
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SettingsError, match="has no column _key: it is not a table that Lakehead"):
        forget(tabled)
    assert KEY not in {key for _, _, key in records_of(tabled)}
    DeltaTable(path).restore(DeltaTable(path).version() - 1)
    assert forget(tabled).certificate == "1"
    assert KEY not in {key for _, _, key in rows_of(tabled)}


def test_a_topic_that_was_deleted_is_checked_by_its_old_partitions(root: Path) -> None:
    forget(root)
    delete_topic(root, "orders")
    found = checked(root)
    assert not found.held
    assert found.pending
    sweep(root)
    assert checked(root).verdict.startswith("certificate 1 holds")


def test_a_rebuild_of_the_catalog_does_not_bring_old_objects_back(root: Path) -> None:
    """They are there still, and hold the same offsets: the newer ones count."""
    before = records_of(root)
    forget(root)
    run_job(REBUILD_CATALOG, str(root), RebuildOptions(replace=True))
    assert records_of(root) == [one for one in before if one[2] != KEY]


def test_a_rebuild_of_the_catalog_names_the_certificates_whose_keys_may_be_back(root: Path) -> None:
    """The object of a merge that was killed covers more than those from which records went. No
    entry named it, and without the metadata that is not known.
    """

    async def die_merging(store: ObjectStore, log: MetadataLog) -> None:
        sources = tuple(key for key, one in log.state.objects.items() if one.stream_ids)
        item = MergeItem(sources=sources, streams=tuple(log.state.streams), size=0)
        merge = ObjectCompaction(store, log, SystemClock(), random.Random(3), item)

        async def killed(*_: object) -> None:
            raise NotUploaded("killed here")

        with pytest.MonkeyPatch.context() as patched, pytest.raises(NotUploaded):
            patched.setattr(ObjectCompaction, "_commit", killed)
            await merge.run()

    in_cluster(str(root), "test", die_merging)
    forget(root)
    assert KEY not in {key for _, _, key in records_of(root)}
    done = run_job(REBUILD_CATALOG, str(root), RebuildOptions(replace=True))
    assert [line.rpartition(": ")[2] for line in done.forgotten] == [
        "lakehead forget orders --check 1"
    ]
    assert KEY in {key for _, _, key in records_of(root)}
    assert "does NOT hold" in checked(root).verdict
    forget(root)
    assert KEY not in {key for _, _, key in records_of(root)}


def test_in_an_encrypted_cluster_no_certificate_can_be_read_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, keys = tmp_path / "store", tmp_path / "keys"
    write(root)
    add_key(keys, "first", rng=random.Random(1))
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_PROVIDER", "file")
    monkeypatch.setenv("LAKEHEAD_ENCRYPTION_KEY_FILE", str(keys))
    assert forget(root).records > 0
    assert KEY not in {key for _, _, key in records_of(root)}
    (new,) = certificate(root).objects[0].after
    for path in (*(root / "forget").rglob("*.json"), root / new.key):
        assert b"orders" not in path.read_bytes(), path
    sweep(root)
    assert checked(root).verdict.startswith("certificate 1 holds")


def test_a_table_that_is_switched_off_meanwhile_is_found_too(tabled: Path) -> None:
    """So the process that follows the table gives its lease back."""
    leases = TableLeases.open(str(tabled))
    topic_id = store_reader(str(tabled)).open_catalog().topic("orders").topic_id
    with leases.held(topic_id), pytest.raises(TableTaken, match="wait for it with --wait"):
        forget(tabled)
    leases.close()
    assert KEY not in {key for _, _, key in records_of(tabled)}
    declare(tabled, enable="false")
    assert forget(tabled).certificate == "1"
    assert KEY not in {key for _, _, key in rows_of(tabled)}
    declare(tabled)
    refresh(tabled)
    assert attested(tabled).found() == ()
