"""The principal of a connection: the name under which a client acts (Kafka's KafkaPrincipal).

A listener without authentication has the principal `User:ANONYMOUS`, as in Kafka.
"""

from typing import NamedTuple

USER = "User"
NODE = "Node"
"""Type of the principals of nodes: no user can have it, and no access rule names it."""


class KafkaPrincipal(NamedTuple):
    """A type, in practice `User`, and a name. `is_token_authenticated` is true for a client that
    authenticated by a delegation token (KIP-48); it does not count in comparisons of rules.
    """

    principal_type: str
    name: str
    is_token_authenticated: bool = False

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "KafkaPrincipal":
        """Return the principal of `type:name`, as settings and requests write it. Raises
        ValueError.
        """
        principal_type, colon, name = text.partition(":")
        if not colon or not principal_type or not name:
            raise ValueError(f"{text!r} is not a principal, which is written type:name")
        return cls(principal_type, name)


ANONYMOUS = KafkaPrincipal(USER, "ANONYMOUS")
