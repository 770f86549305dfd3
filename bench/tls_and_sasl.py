"""TLS and SASL of the servers of a benchmark: one certificate, one user, SCRAM-SHA-512 for both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock

MECHANISM = "SCRAM-SHA-512"
USER, PASSWORD = "bench", "bench-s3cret"
_HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of the clients of a server, beside its address: none, by default."""

    java: Mapping[str, str] = field(default_factory=dict)
    librdkafka: Mapping[str, str] = field(default_factory=dict)


class TlsAndSasl:
    """The certificates in a folder, made if they are not there."""

    def __init__(self, folder: Path) -> None:
        authority = DevelopmentCa(folder, utc(SystemClock().now_ms()))
        self._node = authority.issue("node", hosts=_HOSTS)
        self._authority = authority.certificate_path

    @property
    def client(self) -> ClientSettings:
        """Settings of clients."""
        login = f'username="{USER}" password="{PASSWORD}"'
        return ClientSettings(
            java={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                "sasl.jaas.config": (
                    f"org.apache.kafka.common.security.scram.ScramLoginModule required {login};"
                ),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._authority),
            },
            librdkafka={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                "sasl.username": USER,
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(self._authority),
            },
        )

    def lakehead(self, port: int) -> tuple[list[str], dict[str, str]]:
        """Return flags of `lakehead start`, and environment variables beside them."""
        flags = {
            "listeners": f"SASL_SSL://127.0.0.1:{port}",
            "ssl.keystore.location": str(self._node),
            "ssl.truststore.location": str(self._authority),
            "sasl.enabled.mechanisms": MECHANISM,
            "bootstrap.admin": USER,
        }
        environment = {"LAKEHEAD_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
        return [text for name, value in flags.items() for text in (f"--{name}", value)], environment

    def kafka(self, port: int, controller_port: int) -> tuple[dict[str, str], list[str]]:
        """Return settings of a single node of Kafka, and what formats its storage with the user."""
        settings = {
            "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"SASL_SSL://127.0.0.1:{port}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": self.client.java[
                "sasl.jaas.config"
            ],
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._node),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority),
        }
        return settings, ["--add-scram", f"{MECHANISM}=[name={USER},password={PASSWORD}]"]
