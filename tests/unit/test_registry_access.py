"""Roles of a registry's users: the subjects that each may read, write and delete, and no others."""

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.kafka_client_config import read_client_config
from lakehead.connectors.schema_registry.access import READ, Access
from lakehead.connectors.schema_registry.errors import RegistryError
from lakehead.connectors.schema_registry.registry import Registry
from lakehead.connectors.schema_registry.routes import BareText, Call, Routes
from lakehead.connectors.schema_registry.state import RegistryState
from lakehead.storage.errors import SettingsError

TOKENS = {"ada": "t-ada", "bob": "t-bob", "eve": "t-eve", "root": "t-root", "ops": "t-ops"}
ROLES = """
# user:role:subjects
ada:write:flights-*
ada:read:shared
bob:read:*
ops:admin:flights-*
ops:admin::.lab:*
root:admin:*
"""
SCHEMA = {"schema": '{"type":"record","name":"R","fields":[]}'}


class MemoryLog:
    """The log of a registry in memory: each write is there at once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.state = RegistryState()

    def catch_up(self) -> None: ...

    def cluster_id(self) -> str:
        return "c"

    def write(self, decide: Callable[[], Any]) -> Any:
        records, decided = decide()
        for record in records:
            self.state.apply(record)
        return decided


class Clients:
    """Clients of one registry, by name."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.routes = Routes(Registry(MemoryLog()))  # type: ignore[arg-type]

    def call(self, user: str, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Return the response, or the status and code of an error."""
        caller = self.access.caller(f"Bearer {TOKENS[user]}")
        assert caller is not None
        segments = tuple(segment for segment in path.split("/") if segment)
        call = Call(method=method, path=segments, query=query, body=body, caller=caller)
        try:
            found = self.routes.respond(call)
        except RegistryError as error:
            return error.status, error.code
        return found.text if isinstance(found, BareText) else found


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    (tmp_path / "tokens").write_text("".join(f"{a}:{b}\n" for a, b in TOKENS.items()))
    (tmp_path / "roles").write_text(ROLES)
    found = Clients(Access(tokens=tmp_path / "tokens", roles=tmp_path / "roles"))
    other = {"schema": '{"type":"record","name":"S","fields":[]}'}
    assert found.call("root", "POST", "/subjects/shared/versions", other) == {"id": 1}
    other = {"schema": '{"type":"record","name":"P","fields":[]}'}
    assert found.call("root", "POST", "/subjects/pay/versions", other) == {"id": 2}
    return found


DENIED = (403, 40301)
ANY = object()


@pytest.mark.parametrize(
    ("user", "method", "path", "expected"),
    [
        ("ada", "GET", "/subjects/shared/versions/1", ANY),
        ("ada", "GET", "/subjects/pay/versions/1", DENIED),
        ("ada", "GET", "/subjects/none/versions/1", DENIED),
        ("ada", "GET", "/schemas/ids/1", ANY),
        ("ada", "GET", "/schemas/ids/2", DENIED),
        ("ada", "GET", "/schemas/ids/2/schema", DENIED),
        ("ada", "GET", "/schemas/ids/2/subjects", DENIED),
        ("ada", "GET", "/subjects/pay/versions/1/schema", DENIED),
        ("ada", "GET", "/subjects/pay/versions/1/referencedby", DENIED),
        ("ada", "GET", "/contexts/./subjects/pay/versions/1", DENIED),
        ("ada", "POST", "/subjects/flights-value/versions", {"id": 3}),
        ("ada", "POST", "/subjects/flights-value", (404, 40401)),
        ("ada", "POST", "/subjects/flight/versions", DENIED),
        ("ada", "POST", "/subjects/shared/versions", DENIED),
        ("ada", "POST", "/subjects/pay", DENIED),
        ("ada", "POST", "/compatibility/subjects/pay/versions", DENIED),
        ("ada", "POST", "/compatibility/subjects/flights-value/versions", ANY),
        ("ada", "DELETE", "/subjects/flights-value", DENIED),
        ("ada", "PUT", "/config/flights-value", DENIED),
        ("ada", "PUT", "/config", DENIED),
        ("ada", "GET", "/config", ANY),
        ("ada", "GET", "/config/pay", DENIED),
        ("ada", "GET", "/subjects", ["shared"]),
        ("ada", "GET", "/contexts", ["."]),
        ("bob", "GET", "/subjects", ["pay", "shared"]),
        ("bob", "POST", "/subjects/shared/versions", DENIED),
        ("bob", "PUT", "/mode", DENIED),
        ("eve", "GET", "/subjects", []),
        ("eve", "GET", "/schemas", []),
        ("eve", "GET", "/schemas/ids/1", DENIED),
        ("eve", "GET", "/contexts", []),
        ("eve", "GET", "/schemas/types", ANY),
        ("ops", "PUT", "/config/flights-value", {"compatibility": "NONE"}),
        ("ops", "PUT", "/config/:.lab:", {"compatibility": "NONE"}),
        ("ops", "PUT", "/contexts/.lab/config", {"compatibility": "NONE"}),
        ("ops", "PUT", "/config", DENIED),
        ("ops", "PUT", "/config/:.:", DENIED),
        ("ops", "DELETE", "/config/pay", DENIED),
        ("ops", "DELETE", "/subjects/pay", DENIED),
        ("ops", "POST", "/subjects/:.lab:x/versions", {"id": 1}),
        ("ops", "POST", "/contexts/lab/subjects/x/versions", {"id": 1}),
        ("ops", "POST", "/contexts/./subjects/x/versions", DENIED),
        ("root", "PUT", "/config", {"compatibility": "NONE"}),
        ("root", "DELETE", "/subjects/pay", [1]),
    ],
)
def test_a_role_is_needed_on_the_subject(
    clients: Clients, user: str, method: str, path: str, expected: Any
) -> None:
    body = {"compatibility": "NONE"} if method == "PUT" else SCHEMA
    found = clients.call(user, method, path, body)
    if expected is ANY:
        assert not isinstance(found, tuple), found
    else:
        assert found == expected


def test_a_reference_is_read_by_the_client_that_registers_it(clients: Clients) -> None:
    for subject, expected in (("pay", DENIED), ("shared", {"id": 3})):
        name = {"pay": "P", "shared": "S"}[subject]
        fields = [{"name": "f", "type": name}]
        schema = json.dumps({"type": "record", "name": "R", "fields": fields})
        reference = {"name": name, "subject": subject, "version": 1}
        body = {"schema": schema, "references": [reference]}
        found = clients.call("ada", "POST", "/subjects/flights-value/versions", body)
        assert found == expected


def test_files_are_read_again_and_a_bad_one_changes_nothing(
    clients: Clients, tmp_path: Path
) -> None:
    access, header = clients.access, "Bearer t-bob"
    (tmp_path / "roles").write_text("bob:read:pay\n")
    bob = access.caller(header)
    assert bob is not None
    assert (bob.may(READ, "pay"), bob.may(READ, "shared")) == (True, False)
    (tmp_path / "roles").write_text("bob:owner:pay and more\n")
    bob = access.caller(header)
    assert bob is not None
    assert bob.may(READ, "pay")
    (tmp_path / "tokens").write_text("ada:t-ada\n")
    assert access.caller(header) is None
    (tmp_path / "tokens").unlink()
    assert access.caller("Bearer t-ada") is not None
    assert access.caller(header) is None


def test_credentials_are_read_strictly(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:pass:word\n")
    (tmp_path / "tokens").write_text("robot:abc\n")
    access = Access(users=tmp_path / "users", tokens=tmp_path / "tokens")
    pairs = {b"me:pass:word": True, b"me:pass": False, b"robot:abc": False, b":": False}
    headers = {
        f"Basic {base64.b64encode(pair).decode()}": is_right for pair, is_right in pairs.items()
    }
    headers |= {
        "": False,
        "Basic": False,
        "Basic \xff": False,
        "Bearer abc": True,
        "bearer abc ": True,
    }
    headers |= {"Bearer ": False, "Bearer ab": False, "Bearer \xff": False, "abc": False}
    assert {header: access.caller(header) is not None for header in headers} == headers
    caller = access.caller("Bearer abc")
    assert caller is not None
    assert caller.name == "robot"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:owner:x\n", "line 1: a grant is user:role:subjects"),
        ("a:read\n", "a grant is user:role:subjects"),
        (":read:x\n", "a grant is user:role:subjects"),
    ],
)
def test_a_wrong_grant_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "roles").write_text(text)
    (tmp_path / "users").write_text("a:b\n")
    with pytest.raises(SettingsError, match=words):
        Access(users=tmp_path / "users", roles=tmp_path / "roles")
    with pytest.raises(SettingsError, match="--roles needs --users or --tokens"):
        Access(roles=tmp_path / "roles")


def test_a_java_clients_settings_are_those_of_librdkafka(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    (tmp_path / "password").write_text("p\"w;'x\n")
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ada" password="a\\"b;c";\n'
        "ssl.truststore.location=/etc/ca.pem\nssl.keystore.location=/etc/me.pem\n"
        f"ssl.keystore.type=PEM\nssl.key.password=${{directory:{tmp_path}:password}}\n"
        "ssl.endpoint.identification.algorithm=\n"
    )
    assert read_client_config(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": 'a"b;c',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/me.pem",
        "ssl.key.location": "/etc/me.pem",
        "ssl.key.password": "p\"w;'x",
        "ssl.endpoint.identification.algorithm": "none",
    }
    for line, words in (
        ("sasl.jaas.config=x.KeyTabModule required secret-mark=1;", "is not one of PlainLogin"),
        ("sasl.jaas.config=x.PlainLoginModule required password=secret-mark", "a semicolon"),
        ("sasl.jaas.config=x.PlainLoginModule required password=secret-mark;", "no username"),
        ("ssl.truststore.location=/etc/ca.jks", "JKS is not one of PEM"),
        ("nothing", "line 1: a setting is name=value"),
        ("a=${env:NONE_SUCH}", "line 1: .*no such variable"),
    ):
        file.write_text(line)
        with pytest.raises(SettingsError, match=words) as refused:
            read_client_config(file, {})
        assert "secret-mark" not in str(refused.value)
