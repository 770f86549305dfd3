"""The security protocol of a listener (Kafka's SecurityProtocol): encryption, and how clients prove
names.
"""

from enum import Enum


class SecurityProtocol(Enum):
    """A protocol, by Kafka's name."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        """Return true if connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def is_sasl(self) -> bool:
        """Return true if clients authenticate by SASL before anything else."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}
