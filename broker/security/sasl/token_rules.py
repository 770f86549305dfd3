"""The rules for JSON Web Tokens, as settings give them. A node without OAUTHBEARER reads the rules
alone and loads no library for tokens.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The claims that a token must have; settings `sasl.oauthbearer.*` by Kafka's names."""

    issuer: str = ""
    """Exact `iss`; empty: any."""
    audiences: frozenset[str] = frozenset()
    """One of them is in `aud`; empty: any."""
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredRules:
    """The options of the login module for unsecured tokens, by Kafka's names."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: frozenset[str] = frozenset()
    clock_skew_ms: int = 0
