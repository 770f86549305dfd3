"""The registry's records as Confluent's registry writes them, and what they add up to."""

import json

import pytest

from lakehead.connectors.schema_registry.records import (
    AVRO,
    Config,
    ConfigRecord,
    ContextRecord,
    IdsRecord,
    MalformedRecord,
    ModeRecord,
    Record,
    SchemaReference,
    SchemaText,
    SubjectDeletion,
    Version,
    VersionRecord,
    decode,
    encode,
)
from lakehead.connectors.schema_registry.state import RegistryState, deleted
from lakehead.connectors.schema_registry.subjects import Subject, beside, parse_subject


def version(subject: str, number: int, schema_id: int, text: str = '"int"') -> VersionRecord:
    schema = SchemaText(kind=AVRO, text=text)
    held = Version(subject=subject, version=number, schema_id=schema_id, schema=schema)
    return VersionRecord(subject=subject, version=number, held=held)


def gone(subject: str, number: int) -> VersionRecord:
    return VersionRecord(subject=subject, version=number, held=None)


GOLDEN: list[tuple[Record, str, str | None]] = [
    (
        version("s", 1, 7, '{"type":"fixed"}'),
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        '{"subject":"s","version":1,"id":7,"schema":"{\\"type\\":\\"fixed\\"}","deleted":false}',
    ),
    (gone("s", 2), '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}', None),
    (
        ConfigRecord(subject="", config=Config(level="FULL")),
        '{"keytype":"CONFIG","subject":null,"magic":0}',
        '{"compatibilityLevel":"FULL"}',
    ),
    (
        ConfigRecord(subject="s", config=None),
        '{"keytype":"CONFIG","subject":"s","magic":0}',
        None,
    ),
    (
        ModeRecord(subject="s", mode="READONLY"),
        '{"keytype":"MODE","subject":"s","magic":0}',
        '{"mode":"READONLY"}',
    ),
    (
        SubjectDeletion(subject="s", last_version=3),
        '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        '{"subject":"s","version":3}',
    ),
    (
        ContextRecord(context=".lab"),
        '{"keytype":"CONTEXT","tenant":"default","context":".lab","magic":0}',
        '{"tenant":"default","context":".lab"}',
    ),
    (IdsRecord(highest={".": 9}), '{"keytype":"NOOP","magic":0}', '{"ids":{".":9}}'),
]


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_records_are_the_bytes_that_others_know(
    record: Record, key: str, value: str | None
) -> None:
    encoded = (key.encode(), None if value is None else value.encode())
    assert encode(record) == encoded
    assert decode(*encoded) == record


def test_a_version_with_all_it_can_have() -> None:
    schema = SchemaText(
        kind="JSON",
        text="{}",
        references=(SchemaReference(name="n", subject="o", version=2),),
        metadata='{"properties":{"a":"b"}}',
        rule_set='{"domainRules":[]}',
    )
    held = Version(subject="s", version=1, schema_id=3, schema=schema, is_deleted=True)
    key, value = encode(VersionRecord(subject="s", version=1, held=held))
    assert json.loads(value or b"") == {
        "subject": "s",
        "version": 1,
        "id": 3,
        "schemaType": "JSON",
        "references": [{"name": "n", "subject": "o", "version": 2}],
        "metadata": {"properties": {"a": "b"}},
        "ruleSet": {"domainRules": []},
        "schema": "{}",
        "deleted": True,
    }
    assert decode(key, value) == VersionRecord(subject="s", version=1, held=held)


def test_records_that_say_nothing_and_records_that_cannot_be_read() -> None:
    assert decode(b'{"keytype":"NOOP","magic":0}', None) is None
    assert decode(b'{"keytype":"ASSOCIATION","magic":0}', b"{}") is None
    for key, value in [
        (None, None),
        (b"[]", None),
        (b'{"keytype":"SCHEMA","subject":"s"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"subject":"s"}'),
        (b'{"keytype":"MODE","subject":"s"}', b"no"),
    ]:
        with pytest.raises(MalformedRecord):
            decode(key, value)


def state_of(*records: Record) -> RegistryState:
    state = RegistryState()
    for record in records:
        state.apply(record)
    return state


def test_an_id_is_one_schema_and_outlives_its_versions() -> None:
    subject = Subject(".", "s")
    first = version("s", 1, 1)
    assert first.held is not None
    soft = VersionRecord(subject="s", version=1, held=deleted(first.held))
    state = state_of(first, version("t", 1, 1), soft)
    assert [each.subject for each in state.by_id(".", 1)] == ["s", "t"]
    assert state.versions(subject) == []
    assert [each.version for each in state.versions(subject, deleted=True)] == [1]
    state.apply(gone("s", 1))
    state.apply(gone("t", 1))
    assert state.by_id(".", 1) == []
    assert state.id_of(".", first.held.schema) is None
    assert state.next_id(".") == 2, "an id is never given twice"


def test_the_highest_id_is_known_after_compaction_too() -> None:
    state = state_of(gone("s", 1), IdsRecord(highest={".": 41}))
    assert (state.next_id("."), state.next_id(".lab")) == (42, 1)


def test_a_second_schema_of_an_id_is_left_out() -> None:
    state = state_of(version("s", 1, 1), version("t", 1, 1, '"long"'))
    assert [each.subject for each in state.by_id(".", 1)] == ["s"]
    assert state.versions(Subject(".", "t")) == []


def test_a_subject_is_deleted_to_a_version() -> None:
    state = state_of(
        version("s", 1, 1),
        version("s", 2, 2, '"long"'),
        SubjectDeletion(subject="s", last_version=2),
        version("s", 3, 1),
    )
    assert [each.version for each in state.versions(Subject(".", "s"))] == [3]


def test_what_holds_for_a_subject_is_its_own_its_contexts_or_everybodys() -> None:
    subject = Subject(".lab", "s")
    state = state_of(ConfigRecord(subject="", config=Config(level="FULL")))
    assert state.level_in_scope(subject) == "FULL"
    state.apply(ConfigRecord(subject=":.lab:", config=Config(level="NONE", normalize=True)))
    assert (state.level_in_scope(subject), state.normalizes(subject)) == ("NONE", True)
    state.apply(ConfigRecord(subject=":.lab:s", config=Config(level="FORWARD")))
    assert (state.level_in_scope(subject), state.normalizes(subject)) == ("FORWARD", True)
    assert state.level_in_scope(Subject(".", "s")) == "FULL"
    state.apply(ModeRecord(subject=":.lab:s", mode="IMPORT"))
    assert state.mode_in_scope(subject) == "IMPORT"
    state.apply(ModeRecord(subject="", mode="READONLY_OVERRIDE"))
    assert state.mode_in_scope(subject) == "READONLY_OVERRIDE"


def test_names_of_subjects() -> None:
    assert parse_subject(":.lab:a:b") == Subject(".lab", "a:b")
    assert parse_subject(":.:s").qualified == "s"
    assert parse_subject("a:b") == Subject(".", "a:b")
    assert beside(Subject(".lab", "s"), "o").qualified == ":.lab:o"
    assert beside(Subject(".lab", "s"), ":.x:o").qualified == ":.x:o"
    state = state_of(version("s", 1, 1), version(":.lab:s", 1, 1), version(":.lab:t", 1, 1))
    assert list(state.subjects(":*:")) == [":.lab:s", ":.lab:t", "s"]
    assert list(state.subjects(":*:t")) == [":.lab:t"]
    assert list(state.subjects("")) == ["s"]
    assert list(state.subjects(":.lab:")) == [":.lab:s", ":.lab:t"]
    assert list(state.subjects(":.:")) == ["s"]
