"""A cluster of processes as a network should find it: SASL_SSL for clients, mutual TLS between
nodes on a listener of their own, access rules on.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.lakehead_cluster import Place
from bench.process import free_port
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from tests.support.sasl_client import SaslClient

ADMIN, ADMIN_PASSWORD = "admin", "admin-s3cret"
MECHANISM = "SCRAM-SHA-512"
LIMIT_S = 60.0
ALTER_CLIENT_QUOTAS = (49, 1)
NODE_PORT_STEP = 1
"""Of a node's listener for other nodes, beyond that for clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of a cluster by SASL_SSL. `authority` is the certificate that its clients trust."""

    name: str
    password: str
    authority: Path

    @property
    def librdkafka(self) -> dict[str, str | int | float]:
        """Settings of a client of librdkafka, beside the address."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.authority),
        }

    @property
    def kafka_python(self) -> dict[str, str]:
        """The same for kafka-python."""
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": self.name,
            "sasl_plain_password": self.password,
            "ssl_cafile": str(self.authority),
        }


class Rule(NamedTuple):
    """Operations on a resource that a user is granted, by the names of Kafka's enumerations."""

    resource: str
    name: str
    pattern: str
    operations: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureCluster:
    """The certificates of a cluster, and what its nodes and clients need."""

    folder: Path
    authority: Path
    """The certificate that clients trust."""

    @classmethod
    def make(cls, folder: Path, hosts: Sequence[str]) -> "SecureCluster":
        """Make certificates in a folder, for nodes at these hosts."""
        authority = DevelopmentCa(folder, utc(SystemClock().now_ms()))
        authority.issue("node", hosts=tuple(hosts))
        return cls(folder=folder, authority=authority.certificate_path)

    def place(self, place: Place, *, open_port: int = 0) -> Place:
        """Return a place whose port is that of the listener for clients, SASL_SSL. With `open_port`
        it has a listener OPEN, PLAINTEXT, too.
        """
        host, port = place.host, place.port or free_port()
        listeners = {"CLIENTS": port, "NODES": port + NODE_PORT_STEP}
        protocols = "CLIENTS:SASL_SSL,NODES:SSL"
        if open_port:
            listeners["OPEN"] = open_port
            protocols += ",OPEN:PLAINTEXT"
        flags = {
            "listeners": ",".join(f"{name}://{host}:{at}" for name, at in listeners.items()),
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "NODES",
            "ssl.keystore.location": str(self.folder / "node.pem"),
            "ssl.truststore.location": str(self.authority),
            "sasl.enabled.mechanisms": MECHANISM,
            "bootstrap.admin": ADMIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}" + (";User:ANONYMOUS" if open_port else ""),
        }
        return replace(
            place,
            port=port,
            environment={**place.environment, "LAKEHEAD_BOOTSTRAP_ADMIN_PASSWORD": ADMIN_PASSWORD},
            flags=(
                *place.flags,
                *(text for name, value in flags.items() for text in (f"--{name}", value)),
            ),
        )

    def user(self, name: str = ADMIN, password: str = ADMIN_PASSWORD) -> User:
        """Return a user, by default the one that may do everything."""
        return User(name=name, password=password, authority=self.authority)


def add_password(client: AdminClient, user: User) -> None:
    """Add a user without any rights to a running cluster."""
    credential = UserScramCredentialUpsertion(
        user.name,
        ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),
        user.password.encode(),
    )
    for done in client.alter_user_scram_credentials([credential]).values():
        done.result(LIMIT_S)


def add_user(
    bootstrap: str, admin: User, user: User, *, rules: Sequence[Rule], quotas: Mapping[str, float]
) -> None:
    """Add a user with access rules and quotas to a running cluster, as its admin."""
    client = AdminClient({"bootstrap.servers": bootstrap, **admin.librdkafka})
    add_password(client, user)
    bindings = [
        AclBinding(
            ResourceType[rule.resource],
            rule.name,
            ResourcePatternType[rule.pattern],
            f"User:{user.name}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for rule in rules
        for operation in rule.operations
    ]
    for made in client.create_acls(bindings).values():
        made.result(LIMIT_S)
    set_quotas(bootstrap, admin, user.name, quotas)


def set_quotas(bootstrap: str, admin: User, name: str, quotas: Mapping[str, float]) -> None:
    """Set quotas of a user, for which confluent-kafka has no call."""
    module = schema(*ALTER_CLIENT_QUOTAS).request_module
    ops = [
        entity(module, "OpData", key=key, value=value, remove=False)
        for key, value in quotas.items()
    ]
    owner = [entity(module, "EntityData", entity_type="user", entity_name=name)]
    entry = entity(module, "EntryData", entity=owner, ops=ops)
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    context = ssl.create_default_context(cafile=str(admin.authority))
    with SaslClient(int(port), host=host, tls=context) as client:
        assert int(client.scram(admin.name, admin.password).error_code) == 0
        response = client.ask(
            *ALTER_CLIENT_QUOTAS, "AlterClientQuotasRequest", entries=[entry], validate_only=False
        )
        assert [int(one.error_code) for one in response.entries] == [0]
