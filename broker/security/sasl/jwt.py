"""JSON Web Tokens (RFC 7519) as clients send them by OAUTHBEARER: what they prove, and until when.

A signed token is valid by one of the keys of its issuer (a JWK set, RFC 7517). Only signatures by
private keys count: a key that verifies is public, so it must not be taken as a shared secret. An
unsecured one, `alg` none, proves nothing; it is for tests (Kafka's
OAuthBearerUnsecuredValidatorCallbackHandler).
"""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from lakehead.broker.security.sasl.outcome import InvalidToken, ValidToken
from lakehead.broker.security.sasl.token_rules import TokenRules, UnsecuredRules

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Algorithms of signatures that are accepted."""
TOKEN_MAX = 64 << 10
"""Longest token, in bytes."""
_TRIED_MAX = 16
"""Keys that are tried for a token that names none."""

Key = RSAKey | ECKey | OKPKey | OctKey
Claims = Mapping[str, Any]


class KeyUnknown(Exception):
    """The token names a key, `key_id`, that is not in the set; its issuer may have a new one."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"a token is signed by an unknown key {key_id[:64]!r}")
        self.key_id = key_id


def validate_signed(
    token: str, keys: KeySet, rules: TokenRules, now_ms: int
) -> ValidToken | InvalidToken:
    """Return what a signed token proves. Raises KeyUnknown."""
    if len(token) > TOKEN_MAX:
        return InvalidToken(f"a token of {len(token)} bytes")
    parts = token.split(".")
    header = _document(parts[0]) if len(parts) == 3 else None
    if header is None:
        return InvalidToken("the token is not a signed JSON Web Token")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        return InvalidToken("the token is signed by an algorithm that is not accepted")
    if key_id is not None and not isinstance(key_id, str):
        return InvalidToken("the token names its key by something else than a text")
    candidates = _candidates(keys.keys, algorithm, key_id)
    if not candidates and key_id is not None:
        raise KeyUnknown(key_id)
    claims = _verified(token, candidates)
    if claims is None:
        return InvalidToken("no key of the issuer fits the signature of the token")
    problem = _problem(claims, rules, now_ms)
    if problem:
        return InvalidToken(problem)
    return ValidToken(str(claims[rules.subject_claim]).strip(), _milliseconds(claims["exp"]))


def validate_unsecured(token: str, rules: UnsecuredRules, now_ms: int) -> ValidToken | InvalidToken:
    """Return what an unsecured token says, by Kafka's rules."""
    parts = token.split(".")
    if len(token) > TOKEN_MAX or len(parts) != 3 or parts[2]:
        return InvalidToken("the token is not an unsecured JSON Web Token")
    header, claims = _document(parts[0]), _document(parts[1])
    if header is None or claims is None or header.get("alg") != "none":
        return InvalidToken("the token is not an unsecured JSON Web Token")
    subject, issued, expires = (
        claims.get(rules.subject_claim),
        claims.get("iat"),
        claims.get("exp"),
    )
    if not isinstance(subject, str) or not subject.strip():
        return InvalidToken(f"the token has no claim {rules.subject_claim}")
    if not _is_time(expires) or not (issued is None or _is_time(issued)):
        return InvalidToken("the times of the token are not numbers")
    if issued is not None and (
        _milliseconds(issued) > now_ms + rules.clock_skew_ms or issued >= expires
    ):
        return InvalidToken("the token is issued later than now, or than it expires")
    if now_ms - rules.clock_skew_ms >= _milliseconds(expires):
        return InvalidToken("the token has expired")
    missing = rules.required_scope - _scopes(claims.get(rules.scope_claim))
    if missing:
        scope = " ".join(sorted(rules.required_scope))
        return InvalidToken("the token lacks a required scope", "insufficient_scope", scope)
    return ValidToken(subject, _milliseconds(expires))


def _candidates(keys: Sequence[Key], algorithm: str, key_id: str | None) -> Sequence[Key]:
    kind = RSAKey if algorithm[0] in "RP" else OKPKey if algorithm.startswith("Ed") else ECKey
    fitting = [
        key
        for key in keys
        if isinstance(key, kind)
        and key.get("use") in {None, "sig"}
        and key.get("alg") in {None, algorithm}
        and (key_id is None or key.kid == key_id)
    ]
    return fitting[:_TRIED_MAX]


class _Registry(jws.JWSRegistry):
    """Takes long tokens, and `EdDSA` for what RFC 9864 calls Ed25519: issuers still write that."""

    max_header_length = TOKEN_MAX
    max_payload_length = TOKEN_MAX

    def get_alg(self, name: str) -> Any:
        return super().get_alg("Ed25519" if name == "EdDSA" else name)


def _verified(token: str, candidates: Collection[Key]) -> Claims | None:
    """Return the claims if one of these keys has signed them."""
    registry = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)
    for key in candidates:
        try:
            claims = jwt.decode(token, key, registry=registry).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        return claims
    return None


def _problem(claims: Claims, rules: TokenRules, now_ms: int) -> str:
    """Return what is wrong with the claims of a token; empty: nothing."""
    issued, expires = claims.get("iat"), claims.get("exp")
    before = claims.get("nbf", issued)
    if not (_is_time(issued) and _is_time(expires) and _is_time(before)):
        return "the token lacks the times iat and exp, or they are not numbers"
    skew_ms = rules.clock_skew_s * 1000
    if _milliseconds(expires) + skew_ms <= now_ms:
        return "the token has expired"
    if max(_milliseconds(issued), _milliseconds(before)) - skew_ms > now_ms:
        return "the token is not valid yet"
    if rules.issuer and claims.get("iss") != rules.issuer:
        return "the token is of another issuer"
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if rules.audiences and not rules.audiences.intersection(
        one for one in audiences if isinstance(one, str)
    ):
        return "the token is for another audience"
    scope = claims.get(rules.scope_claim)
    if isinstance(scope, list) and not all(isinstance(one, str) and one.strip() for one in scope):
        return f"the claim {rules.scope_claim} of the token has an empty scope"
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        return f"the token has no claim {rules.subject_claim}"
    return ""


def _document(part: str) -> dict[str, Any] | None:
    """Return the JSON object of a part of a token, or None."""
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_time(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**50  # false for NaN; integers may have any number of digits


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _scopes(claim: object) -> frozenset[str]:
    if isinstance(claim, str):
        return frozenset({claim.strip()})
    items = claim if isinstance(claim, list) else []
    return frozenset(item.strip() for item in items if isinstance(item, str))
