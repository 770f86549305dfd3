"""The registry over a real broker: its interface, Confluent's serializers, tables of the lake."""

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from google.protobuf.message_factory import GetMessageClass

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.tables.values.protobuf_schema import compile_proto
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure
from tests.support.registry_process import RegistryProcess
from tests.support.topic_writer import write_topic

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the client is built on
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.xdist_group("connectors")


@pytest.fixture(scope="module")
def registry(broker: BrokerProcess) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.bootstrap, "_schemas")
    yield process
    assert process.stop() == 0


def record(name: str, *fields: str, **more: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": "int"} for field in fields]
    return {"type": "record", "name": name, "fields": listed, **more}


def values_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_versions_ids_and_what_is_not_there(registry: RegistryProcess) -> None:
    call = registry.call
    first, second = record("V", "a"), record("V")
    one = registry.register("versions", first)
    assert registry.register("versions", json.dumps(first, indent=2)) == one
    assert registry.register("elsewhere", first) == one
    two = registry.register("versions", second)
    text = '{"type":"record","name":"V","fields":[]}'
    latest = {"subject": "versions", "version": 2, "id": two, "schema": text}
    assert call("GET", "/subjects/versions/versions/latest") == (200, latest)
    assert call("POST", "/subjects/versions", {"schema": text}) == (200, latest)
    assert call("GET", "/subjects/versions/versions") == (200, [1, 2])
    assert call("GET", "/subjects/versions/versions?offset=1&limit=5") == (200, [2])
    assert call("GET", "/subjects/versions/versions/2/schema") == (200, json.loads(text))
    assert call("GET", f"/schemas/ids/{two}") == (200, {"schema": text})
    places = [{"subject": "elsewhere", "version": 1}, {"subject": "versions", "version": 1}]
    assert call("GET", f"/schemas/ids/{one}/versions") == (200, places)
    assert call("GET", "/schemas/types") == (200, ["JSON", "PROTOBUF", "AVRO"])
    refused: list[tuple[str, str, Any, int]] = [
        ("GET", "/subjects/nobody/versions", None, 40401),
        ("GET", "/subjects/versions/versions/9", None, 40402),
        ("GET", "/subjects/versions/versions/0", None, 42202),
        ("GET", "/subjects/versions/versions/last", None, 42202),
        ("GET", "/schemas/ids/999999", None, 40403),
        ("POST", "/subjects/versions", {"schema": '"long"'}, 40403),
        ("POST", "/subjects/nobody", {"schema": text}, 40401),
        ("POST", "/subjects/versions/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/versions/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/versions/versions", {"schema": "{}", "schemaType": "X"}, 42201),
        ("POST", "/subjects/versions/versions", {"schema": '"\ud800"'}, 42201),
        ("POST", "/subjects/versions/versions", [], 422),
        ("POST", "/subjects/versions/versions", {"schema": text, "metadata": [1]}, 422),
        ("POST", "/subjects/versions/versions", {"schema": text, "references": {"a": 1}}, 422),
        ("POST", "/subjects/versions/versions", {"schema": text, "id": 1 << 40}, 422),
        ("PUT", "/config", {"alias": "x"}, 422),
        ("GET", "/subjects?limit=many", None, 422),
        ("GET", "/subjects/versions/metadata?key=a&value=b", None, 40403),
        ("POST", "/subjects/%0Ax/versions", {"schema": text}, 42208),
        ("GET", "/nothing", None, 404),
    ]
    for method, path, body, code in refused:
        status, answer = call(method, path, body)
        assert (answer["error_code"], status) == (code, code if code < 1000 else code // 100)


def test_what_is_not_compatible_is_refused_and_said_why(registry: RegistryProcess) -> None:
    call = registry.call
    registry.register("levels", record("L", "a"))
    wider = {"schema": json.dumps(record("L", "a", "b"))}
    status, answer = call("POST", "/subjects/levels/versions", wider)
    assert (status, answer["error_code"]) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["message"]
    check = "/compatibility/subjects/levels/versions"
    assert call("POST", f"{check}/latest", wider) == (200, {"is_compatible": False})
    found = call("POST", f"{check}?verbose=true", wider)[1]
    assert found["messages"][1] == "{oldSchemaVersion: 1}"
    assert call("POST", f"{check}/7", wider)[1]["error_code"] == 40402
    assert call("GET", "/config") == (200, {"compatibilityLevel": "BACKWARD"})
    assert call("GET", "/config/levels")[1]["error_code"] == 40408
    assert call("GET", "/config/levels?defaultToGlobal=true")[1] == {
        "compatibilityLevel": "BACKWARD"
    }
    set_to = {"compatibility": "FORWARD"}
    assert call("PUT", "/config/levels", set_to) == (200, set_to)
    assert call("POST", f"{check}/latest", wider) == (200, {"is_compatible": True})
    assert call("PUT", "/config/levels", {"compatibility": "SOME"})[1]["error_code"] == 42203
    registry.register("levels", record("L", "a", "b"))
    assert call("DELETE", "/config/levels") == (200, {"compatibilityLevel": "FORWARD"})
    assert call("DELETE", "/config/levels")[1]["error_code"] == 40401


def test_deletion_goes_in_two_steps_and_minds_references(registry: RegistryProcess) -> None:
    call = registry.call
    inner = registry.register("inner", record("Inner", "x"))
    using = {**record("Outer"), "fields": [{"name": "i", "type": "Inner"}]}
    reference = {"name": "Inner", "subject": "inner", "version": 1}
    outer = registry.register("outer", using, references=[reference])
    assert call("GET", "/subjects/inner/versions/1/referencedby") == (200, [outer])
    assert call("DELETE", "/subjects/inner")[1]["error_code"] == 42206
    assert call("DELETE", "/subjects/outer?permanent=true")[1]["error_code"] == 40405
    assert call("DELETE", "/subjects/outer") == (200, [1])
    assert call("DELETE", "/subjects/outer")[1]["error_code"] == 40404
    assert call("GET", f"/schemas/ids/{outer}")[0] == 200
    assert call("GET", "/subjects/outer/versions/1")[1]["error_code"] == 40401
    assert call("GET", "/subjects/outer/versions/1?deleted=true")[1]["id"] == outer
    assert call("DELETE", "/subjects/inner/versions/1") == (200, 1)
    assert call("DELETE", "/subjects/inner/versions/1")[1]["error_code"] == 40406
    # The schema of a deleted subject still refers to it.
    assert call("DELETE", "/subjects/inner?permanent=true")[1]["error_code"] == 42206
    assert call("DELETE", "/subjects/outer?permanent=true") == (200, [1])
    assert call("DELETE", "/subjects/inner/versions/1?permanent=true") == (200, 1)
    assert call("GET", f"/schemas/ids/{inner}")[1]["error_code"] == 40403
    assert registry.register("inner", record("Inner", "x")) > outer, "no id is given twice"
    missing = {"schema": json.dumps(using), "references": [{**reference, "version": 7}]}
    assert call("POST", "/subjects/outer/versions", missing)[1]["error_code"] == 42201


def test_a_reference_to_the_latest_version_is_kept_by_its_number(
    registry: RegistryProcess,
) -> None:
    call = registry.call
    whole = json.dumps({**record("Whole"), "fields": [{"name": "p", "type": "Part"}]})
    body = {
        "schema": whole,
        "references": [{"name": "Part", "subject": "part", "version": -1}],
    }
    assert call("POST", "/subjects/whole/versions", body)[1]["error_code"] == 42201
    registry.register("part", record("Part", "a"))
    first = call("POST", "/subjects/whole/versions", body)[1]["id"]
    assert call("POST", "/subjects/whole", body)[1]["id"] == first
    assert registry.call("PUT", "/config/part", {"compatibility": "NONE"})[0] == 200
    registry.register("part", record("Part", "a", "b"))
    assert call("GET", "/subjects/whole/versions/1")[1]["references"][0]["version"] == 1
    assert call("GET", "/subjects/part/versions/1/referencedby") == (200, [first])
    assert call("PUT", "/config/whole", {"compatibility": "NONE"})[0] == 200
    second = call("POST", "/subjects/whole/versions", body)[1]["id"]
    assert second > first, "it means another version now"
    assert call("GET", f"/schemas/ids/{second}")[1]["references"][0]["version"] == 2


def test_what_is_registered_already_is_found_in_read_only_mode_too(
    registry: RegistryProcess,
) -> None:
    """As Confluent's registry does, which looks for the schema before it looks at the mode."""
    schema_id = registry.register("kept", record("Kept"))
    assert registry.call("PUT", "/mode/kept", {"mode": "READONLY"})[0] == 200
    assert registry.register("kept", record("Kept")) == schema_id
    refused = {"schema": json.dumps(record("Kept", "more"))}
    assert registry.call("POST", "/subjects/kept/versions", refused)[1]["error_code"] == 42205


def test_a_version_that_comes_back_keeps_its_id(registry: RegistryProcess) -> None:
    schema_id = registry.register("back", record("Back"))
    assert registry.call("DELETE", "/subjects/back") == (200, [1])
    assert "back" not in registry.call("GET", "/subjects")[1]
    assert "back" in registry.call("GET", "/subjects?deleted=true&subjectPrefix=ba")[1]
    assert registry.register("back", record("Back")) == schema_id
    assert registry.call("GET", "/subjects/back/versions?deleted=true") == (200, [2])


def test_a_deleted_version_that_schemas_refer_to_stays_when_its_schema_comes_back(
    registry: RegistryProcess,
) -> None:
    call = registry.call
    registry.register("axle", record("Axle", "x"))
    cart = {**record("Cart"), "fields": [{"name": "a", "type": "Axle"}]}
    reference = {"name": "Axle", "subject": "axle", "version": 1}
    schema_id = registry.register("cart", cart, references=[reference])
    assert call("DELETE", "/subjects/cart") == (200, [1])
    assert call("DELETE", "/subjects/axle") == (200, [1])
    registry.register("axle", record("Axle", "x"))
    # Values that were written with the cart's schema are read by all that it refers to.
    assert call("GET", f"/schemas/ids/{schema_id}")[1]["references"] == [reference]
    assert call("GET", "/subjects/axle/versions/1?deleted=true")[0] == 200
    assert registry.register("cart", cart, references=[reference]) == schema_id
    assert call("GET", "/subjects/axle/versions?deleted=true") == (200, [1, 2])


def test_a_chain_that_is_too_deep_to_be_compared_is_refused_as_a_schema(
    registry: RegistryProcess,
) -> None:
    """Clients repeat a request that the server failed at."""
    links: dict[str, Any] = {
        f"d{number}": {"properties": {"next": {"$ref": f"#/definitions/d{number + 1}"}}}
        for number in range(600)
    }
    schema = {"$ref": "#/definitions/d0", "definitions": {**links, "d600": {"type": "string"}}}
    registry.register("chain", schema, schemaType="JSON")
    more = {"schema": json.dumps({**schema, "title": "more"}), "schemaType": "JSON"}
    status, found = registry.call("POST", "/subjects/chain/versions", more)
    assert (status, found["error_code"]) == (422, 42201)


@pytest.mark.parametrize(
    "more",
    [
        {"id": 1e999},
        {"references": [{"name": "a", "subject": "b", "version": 1e999}]},
        {"metadata": {"properties": {"owner": "\ud800"}}},
        {"ruleSet": {"domainRules": [{"name": "\ud800"}]}},
    ],
    ids=["id", "version", "metadata", "rules"],
)
def test_values_that_no_record_can_have_are_refused(
    registry: RegistryProcess, more: dict[str, Any]
) -> None:
    body = {"schema": '"int"', **more}
    assert registry.call("POST", "/subjects/numbers/versions", body)[0] == 422


def test_modes(registry: RegistryProcess) -> None:
    call = registry.call
    assert call("GET", "/mode") == (200, {"mode": "READWRITE"})
    assert call("GET", "/mode/modes")[1]["error_code"] == 40409
    assert call("PUT", "/mode/modes", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    body = {"schema": json.dumps(record("M"))}
    assert call("POST", "/subjects/modes/versions", body)[1]["error_code"] == 42205
    assert call("PUT", "/mode/modes", {"mode": "NONE"})[1]["error_code"] == 42204
    assert call("PUT", "/mode/modes", {"mode": "IMPORT"})[0] == 200
    assert call("POST", "/subjects/modes/versions", body)[1]["error_code"] == 42205
    assert registry.register("modes", record("M"), id=70_001, version=5) == 70_001
    other = {"schema": '"string"', "id": 70_001, "version": 6}
    assert call("POST", "/subjects/modes/versions", other)[1]["error_code"] == 42205
    assert call("DELETE", "/mode/modes") == (200, {"mode": "IMPORT"})
    assert call("GET", "/subjects/modes/versions") == (200, [5])
    registry.register("levels-of-import", record("N"))
    assert call("PUT", "/mode/levels-of-import", {"mode": "IMPORT"})[1]["error_code"] == 42205


def test_contexts_have_ids_and_subjects_of_their_own(registry: RegistryProcess) -> None:
    call = registry.call
    assert registry.register(":.lab:s", record("InTheLab")) == 1
    assert call("GET", "/contexts")[1] == [".", ".lab"]
    assert call("GET", "/contexts/.lab/subjects") == (200, [":.lab:s"])
    assert call("GET", "/contexts/.lab/subjects/s/versions/1")[1]["subject"] == ":.lab:s"
    text = {"schema": '{"type":"record","name":"InTheLab","fields":[]}'}
    assert call("GET", "/contexts/.lab/schemas/ids/1") == (200, text)
    assert call("GET", "/schemas/ids/1?subject=s") == (200, text)
    assert call("GET", "/schemas/ids/1")[1] != text


def test_bodies_are_bounded(registry: RegistryProcess) -> None:
    big = {"schema": json.dumps(record("Big", doc="x" * (5 << 20)))}
    status, answer = registry.call("POST", "/subjects/big/versions", big)
    assert (status, answer["error_code"]) == (413, 413)
    big = {"schema": json.dumps(record("Big", doc="x" * (3 << 20)))}
    status, answer = registry.call("POST", "/subjects/big/versions", big)
    assert (status, answer["error_code"]) == (422, 42209), "the topic takes 1 MiB"
    assert registry.register("big", record("Big")) > 0


def test_avro_with_references_by_confluents_client(registry: RegistryProcess) -> None:
    place = {"type": "record", "name": "Place", "fields": [{"name": "gate", "type": "string"}]}
    using = {**record("Flight", "delay")}
    using["fields"] = [*using["fields"], {"name": "at", "type": "Place"}]
    value = {"delay": 5, "at": {"gate": "B1"}}
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("place", Schema(json.dumps(place), "AVRO"))
        given = Schema(json.dumps(using), "AVRO", [SchemaReference("Place", "place", 1)])
        framed = AvroSerializer(client, given)(value, values_of("flights"))
        assert AvroDeserializer(client)(framed, values_of("flights")) == value
        assert client.get_latest_version("flights-value").version == 1
        assert client.test_compatibility("flights-value", given)
        changed = Schema(json.dumps(record("Flight", "delay", "gate")), "AVRO")
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema("flights-value", changed)
        assert refused.value.http_status_code == 409


def test_json_with_references_by_confluents_client(registry: RegistryProcess) -> None:
    inner = {"title": "Place", "type": "object", "properties": {"gate": {"type": "string"}}}
    outer = {
        "title": "Stop",
        "type": "object",
        "properties": {"at": {"$ref": "place.json"}, "delay": {"type": "integer"}},
    }
    value = {"delay": 5, "at": {"gate": "B1"}}
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("place-json", Schema(json.dumps(inner), "JSON"))
        reference = SchemaReference("place.json", "place-json", 1)
        given = Schema(json.dumps(outer), "JSON", [reference])
        framed = JSONSerializer(given, client)(value, values_of("stops"))
        read = JSONDeserializer(given, schema_registry_client=client)
        assert read(framed, values_of("stops")) == value


def test_protobuf_with_references_by_confluents_client(registry: RegistryProcess) -> None:
    place = 'syntax = "proto3"; package air; message Place { string gate = 1; }'
    stop = """syntax = "proto3"; package air; import "place.proto"; // says where
        message Stop { map<string, Place> before = 1; Place at = 2; message Part { int32 n = 1; } }
        message Leg { repeated Stop stops = 1; }"""
    file = compile_proto(stop, (("place.proto", place),))
    leg = GetMessageClass(file.message_types_by_name["Leg"])
    value = leg(stops=[{"at": {"gate": "B1"}, "before": {"x": {"gate": "A"}}}])
    config = {"use.deprecated.format": False}
    with SchemaRegistryClient({"url": registry.url}) as client:
        framed = ProtobufSerializer(leg, client, config)(value, values_of("legs"))
        assert ProtobufDeserializer(leg, config, client)(framed, values_of("legs")) == value
        held = client.get_latest_version("legs-value")
        text = held.schema.schema_str
    assert "message Stop {" in text, "the descriptor that it sent is kept as a text"
    reference = {"name": "place.proto", "subject": "place.proto", "version": 1}
    body = {"schema": stop, "schemaType": "PROTOBUF", "references": [reference]}
    status, answer = registry.call("POST", "/subjects/legs-value", body)
    assert (status, answer.get("id")) == (200, held.schema_id), "a text of it is the same schema"
    assert answer["references"] == [reference]


def test_a_topic_with_this_registry_becomes_a_table(
    registry: RegistryProcess, tmp_path: Path
) -> None:
    rows = [{"delay": 5}, {"delay": 7}]
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, json.dumps(record("Row", "delay")))
        values = [serializer(row, values_of("rows")) for row in rows]
    write_topic(tmp_path / "cluster", "rows", {0: values})
    declared = {"enable": "true", "value.format": "avro", "schema.registry.url": registry.url}
    configure(tmp_path / "cluster", "rows", {PREFIX + name: v for name, v in declared.items()})
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(tmp_path / "cluster"))
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    assert outcomes[0].error is None
    held = DeltaTable(tmp_path / "cluster" / "tables" / "rows").to_pyarrow_table()
    assert held.column("delay").to_pylist() == [5, 7]


@pytest.mark.slow
def test_passwords_and_tls(broker: BrokerProcess, tmp_path: Path) -> None:
    users, pem = tmp_path / "users", tmp_path / "pem"
    users.write_text("# who\nme:pass:word\n")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", pem, "-out", tmp_path / "cert"),
        ],
        check=True,
        capture_output=True,
    )
    pem.write_text((tmp_path / "cert").read_text() + pem.read_text())
    flags = ("--users", str(users), "--tls-cert", str(pem))
    registry = RegistryProcess(broker.bootstrap, "_schemas_guarded", *flags)
    assert registry.url.startswith("https://")
    assert registry.call("GET", "/subjects")[0] == 401
    for given, status in (("bWU6cGFzczp3b3Jk", 200), ("bWU6cGFzcw==", 401), ("bm9ib2R5Og==", 401)):
        headers = {"authorization": f"Basic {given}"}
        assert registry.call("GET", "/subjects", headers=headers)[0] == status
    assert registry.stop() == 0


def test_bad_settings_are_one_line_each(
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    (tmp_path / "bad").write_text("nothing\n")
    for flags, said in [
        (("--port", str(broker.port)), "cannot listen at"),
        (("--users", str(tmp_path / "bad")), "a user is name:password"),
        (("--users", str(tmp_path / "none")), "No such file"),
        (("--command-config", str(tmp_path / "bad")), "a setting is name=value"),
        (("--tls-cert", str(tmp_path / "bad"), "--port", "0"), "no certificate and key in PEM"),
        (("--tls-key", str(tmp_path / "bad"), "--port", "0"), "--tls-key needs --tls-cert"),
    ]:
        assert said in command_line.fails("registry", "-b", broker.bootstrap, *flags)
