"""The registry's client against a registry over HTTP, with bytes of Confluent's own serializers."""

import json
import socket
import threading
import warnings
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.registry import CREDENTIALS, RegistryUnavailable, SchemaRegistry
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from tests.support.schema_registry import Schemas, serve_schemas

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what the client is built on
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}
LATER = {
    **FLIGHT,
    "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string", "default": "-"}],
}


@pytest.fixture
def served() -> Iterator[tuple[str, Schemas]]:
    with serve_schemas() as found:
        yield found


class Later(SystemClock):
    """A clock that can be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def client(url: str, environment: dict[str, str] | None = None, retries: int = 4) -> SchemaRegistry:
    return SchemaRegistry(url, environment=environment or {}, clock=SystemClock(), retries=retries)


def serialized(
    url: str, schema: Any, *values: Any, references: tuple[Any, ...] = ()
) -> list[bytes]:
    given = Schema(json.dumps(schema), "AVRO", list(references))
    context = SerializationContext("flights", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as registered:
        serializer = AvroSerializer(registered, given)
        return [serializer(value, context) for value in values]


def batch(values: Sequence[bytes | None]) -> pa.RecordBatch:
    columns = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def test_values_of_confluents_serializer_in_two_versions(served: tuple[str, Schemas]) -> None:
    url, _ = served
    first = serialized(url, FLIGHT, {"carrier": "AA", "delay": 5}, {"carrier": "UA", "delay": None})
    second = serialized(url, LATER, {"carrier": "DL", "delay": 1, "gate": "B7"})
    decoder = open_decoder(ValueSpec(value_format="avro", registry=url))
    sample = batch([first[0], None, second[0], first[1]])
    schema = decoder.schema_of(sample)
    assert schema == parse_schema("carrier STRING, delay INT, gate STRING")
    found = decoder.decode(sample, schema)
    assert found.rows.to_pylist() == [0, 1, 2, 3]
    assert found.faults == ()
    assert found.found is None
    assert found.columns.to_pylist() == [
        {"carrier": "AA", "delay": 5, "gate": None},
        {"carrier": None, "delay": None, "gate": None},
        {"carrier": "DL", "delay": 1, "gate": "B7"},
        {"carrier": "UA", "delay": None, "gate": None},
    ]


def test_a_newer_schema_is_found_and_an_older_column_set_stays_readable(
    served: tuple[str, Schemas],
) -> None:
    url, _ = served
    values = serialized(url, LATER, {"carrier": "DL", "delay": 1, "gate": "B7"})
    held = parse_schema("carrier STRING, delay BIGINT")
    found = open_decoder(ValueSpec(value_format="avro", registry=url)).decode(batch(values), held)
    assert found.columns.to_pylist() == [{"carrier": "DL", "delay": 1}]
    assert found.found == parse_schema("carrier STRING, delay INT, gate STRING")


def test_a_declared_schema_is_the_readers_with_defaults_and_aliases(
    served: tuple[str, Schemas],
) -> None:
    url, _ = served
    values = serialized(url, FLIGHT, {"carrier": "AA", "delay": 5})
    reader = {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "airline", "type": "string", "aliases": ["carrier"]},
            {"name": "delay", "type": ["null", "long"], "default": None},
            {"name": "gate", "type": "string", "default": "?"},
            {"name": "legs", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
        ],
    }
    decoder = open_decoder(ValueSpec(value_format="avro", registry=url, schema=json.dumps(reader)))
    found = decoder.decode(batch(values), decoder.schema_of(batch(values)))
    assert found.columns.to_pylist() == [{"airline": "AA", "delay": 5, "gate": "?", "legs": [1, 2]}]


def test_types_of_other_subjects(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    inner = {"type": "record", "name": "Place", "fields": [{"name": "gate", "type": "string"}]}
    schemas.register("place", {"schema": json.dumps(inner)})
    outer = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "at", "type": "Place"}]}
    reference = SchemaReference("Place", "place", 1)
    value = {"carrier": "AA", "delay": 5, "at": {"gate": "B1"}}
    values = serialized(url, outer, value, references=(reference,))
    decoder = open_decoder(ValueSpec(value_format="avro", registry=url))
    found = decoder.decode(batch(values), decoder.schema_of(batch(values)))
    assert found.columns.to_pylist() == [value]


@pytest.mark.parametrize("subject", ["place", "nowhere"])
def test_a_schema_that_refers_to_what_was_deleted_is_a_fault_of_its_values_alone(
    served: tuple[str, Schemas], subject: str
) -> None:
    """The version is gone, or with it the subject; any producer may name such a schema."""
    url, schemas = served
    good = serialized(url, FLIGHT, {"carrier": "AA", "delay": 5})[0]
    schemas.register("place", {"schema": json.dumps("string")})
    outer = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "at", "type": "Place"}]}
    reference = {"name": "Place", "subject": subject, "version": 9}
    lost = schemas.register("outer", {"schema": json.dumps(outer), "references": [reference]})
    values = batch([b"\x00" + lost.to_bytes(4, "big") + b"\x02A\x00", good])
    decoder = open_decoder(ValueSpec(value_format="avro", registry=url))
    found = decoder.decode(values, decoder.schema_of(values))
    assert found.columns.to_pylist() == [{"carrier": "AA", "delay": 5}]
    [fault] = found.faults
    assert (fault.row, fault.error, fault.schema_id) == (0, "unusable_schema", lost)
    assert f"version 9 of subject {subject}" in fault.reason


def test_a_reference_that_comes_late_is_found_after_a_while(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    reference = {"name": "Place", "subject": "place", "version": 1}
    waiting = schemas.register("outer", {"schema": json.dumps(FLIGHT), "references": [reference]})
    clock = Later()
    registry = SchemaRegistry(url, environment={}, clock=clock)
    found = registry.schema(waiting)
    assert found is not None
    assert "version 1 of subject place" in found.problem
    schemas.register("place", {"schema": json.dumps("string")})
    assert registry.schema(waiting) == found
    clock.ahead_s = 31.0
    found = registry.schema(waiting)
    assert found is not None
    assert not found.problem
    assert [one.name for one in found.references] == ["Place"]


def test_faults_by_class_and_schema_id(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    good = serialized(url, FLIGHT, {"carrier": "AA", "delay": 5})[0]
    other = schemas.register("x", {"schema": "{}", "schemaType": "JSON"})
    clash = schemas.register(
        "y", {"schema": json.dumps({**FLIGHT, "fields": [{"name": "carrier", "type": "long"}]})}
    )
    values = [
        good,
        good[:-1],
        b"\x00\x00\x00\x27\x0f",
        b"bare",
        b"",
        b"\x00" + other.to_bytes(4, "big"),
        b"\x00" + clash.to_bytes(4, "big") + b"\x02",
        b"\x00\xff\xff\xff\xff!",
    ]
    found = open_decoder(ValueSpec(value_format="avro", registry=url)).decode(
        batch(values), parse_schema("carrier STRING, delay INT")
    )
    assert found.rows.to_pylist() == [0]
    assert [(fault.row, fault.error, fault.schema_id) for fault in found.faults] == [
        (1, "malformed", 100),
        (2, "unknown_schema", 9999),
        (3, "unframed", -1),
        (4, "unframed", -1),
        (5, "unusable_schema", other),
        (6, "misfit", clash),
        (7, "unframed", -1),
    ]
    assert schemas.requests.count("GET /schemas/ids/9999") == 1


def test_a_schema_is_asked_for_once_and_an_unknown_one_not_at_every_turn(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    schema_id = schemas.register("x", {"schema": '"string"'})
    registry = client(url)
    for _ in range(3):
        assert registry.schema(schema_id) is not None
        assert registry.schema(7) is None
    assert len(schemas.requests) == 2


def test_a_registry_that_fails_for_a_while_is_asked_again(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    schema_id = schemas.register("x", {"schema": '"string"'})
    schemas.failures_to_come = 2
    found = client(url).schema(schema_id)
    assert found is not None
    assert (found.kind, found.text) == ("AVRO", '"string"')


def test_a_registry_that_is_down_is_no_fault_of_a_record(served: tuple[str, Schemas]) -> None:
    url, schemas = served
    schemas.failures_to_come = 100
    with pytest.raises(RegistryUnavailable, match="returned 503: no leader"):
        client(url, retries=1).schema(1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable, match="request failed"):
            client(nobody, retries=0).schema(1)
        schemas.failures_to_come = 0
        schema_id = schemas.register("x", {"schema": '"string"'})
        assert client(f"{nobody},{url}", retries=0).schema(schema_id) is not None


def test_something_else_that_speaks_http_is_not_taken_for_a_registry(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    schemas.by_id[5] = {"no": "schema"}
    with pytest.raises(RegistryUnavailable, match="returned 200: it is not a schema registry"):
        client(url).schema(5)
    with pytest.raises(RegistryUnavailable, match="returned 404"):
        client(f"{url}/elsewhere").schema(5)


def test_a_redirect_leads_to_no_other_address(served: tuple[str, Schemas]) -> None:
    url, _ = served
    value = serialized(url, FLIGHT, {"carrier": "AA", "delay": 5})[0]
    schema_id = int.from_bytes(value[1:5])
    paths = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(302)
            self.send_header("location", f"{url}{self.path}")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Redirecting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(RegistryUnavailable, match="returned 302"):
            client(f"http://127.0.0.1:{server.server_port}", retries=0).schema(schema_id)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert client(url).schema(schema_id) is not None
    assert paths == [f"/schemas/ids/{schema_id}"]


def test_a_password_from_the_environment_for_its_own_registry_alone(
    served: tuple[str, Schemas],
) -> None:
    url, schemas = served
    schema_id = schemas.register("x", {"schema": '"string"'})
    schemas.password = "me:s@cret"
    given = url.replace("http://", "http://me:s%40cret@")
    elsewhere = "https://me:s%40cret@registry.example:8081"
    assert client(url, {CREDENTIALS: f"{elsewhere},{given}"}).schema(schema_id) is not None
    with pytest.raises(RegistryUnavailable, match=f"401: set {CREDENTIALS}="):
        client(url, {CREDENTIALS: elsewhere}).schema(schema_id)


@pytest.mark.parametrize("url", ["", ",", "registry:8081", "ftp://x", "http://u:p@host"])
def test_a_url_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        client(url)
