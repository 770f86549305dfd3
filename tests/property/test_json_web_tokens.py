"""Tokens prove a name only by a key of the issuer, in their time, for this audience."""

import base64
import hmac
import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws, jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from lakehead.broker.security.sasl.jwks import Jwks, JwksError, parse_jwks
from lakehead.broker.security.sasl.jwt import (
    KeyUnknown,
    validate_signed,
    validate_unsecured,
)
from lakehead.broker.security.sasl.outcome import InvalidToken, ValidToken
from lakehead.broker.security.sasl.token_rules import TokenRules, UnsecuredRules
from tests.support.repetitions import examples

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
OTHER = RSAKey.generate_key(2048, {"kid": "rsa"})
KEYS = KeySet([RSA, EC, ED])
RULES = TokenRules(
    issuer="https://issuer.example", audiences=frozenset({"lake", "kafka"}), clock_skew_s=30
)
CLAIMS: dict[str, Any] = {
    "iss": "https://issuer.example",
    "aud": ["other", "lake"],
    "sub": "alice",
    "iat": NOW_S - 10,
    "exp": NOW_S + 300,
}


def signed(key: Any = RSA, alg: str = "RS256", header: Any = None, **claims: Any) -> str:
    content = {k: v for k, v in (CLAIMS | claims).items() if v is not None}
    head = {"alg": alg, "kid": key.kid} if header is None else header
    return jwt.encode(
        head, content, key, registry=jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    )


@pytest.mark.parametrize(
    ("key", "alg"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "Ed25519")]
)
def test_a_token_of_the_issuer_proves_its_subject_until_it_expires(key: Any, alg: str) -> None:
    found = validate_signed(signed(key, alg), KEYS, RULES, NOW_MS)
    assert found == ValidToken("alice", (NOW_S + 300) * 1000)


def test_an_issuer_may_write_the_older_name_of_ed25519() -> None:
    with pytest.warns(SecurityWarning):
        token = signed(ED, "EdDSA")
    assert isinstance(validate_signed(token, KEYS, RULES, NOW_MS), ValidToken)


def test_a_token_without_a_key_id_is_tried_with_each_fitting_key() -> None:
    token = signed(header={"alg": "RS256"})
    assert isinstance(validate_signed(token, KEYS, RULES, NOW_MS), ValidToken)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": NOW_S - 31}, "expired"),
        ({"exp": None}, "lacks the times"),
        ({"exp": "soon"}, "lacks the times"),
        ({"exp": True}, "lacks the times"),
        ({"exp": 1e300}, "lacks the times"),
        ({"exp": 10**400}, "lacks the times"),
        ({"exp": float("nan")}, "lacks the times"),
        ({"iat": None}, "lacks the times"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [1, {}]}, "another audience"),
        ({"sub": " "}, "no claim sub"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ["alice"]}, "no claim sub"),
        ({"scope": ["read", ""]}, "empty scope"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(claims: dict[str, Any], problem: str) -> None:
    found = validate_signed(signed(**claims), KEYS, RULES, NOW_MS)
    assert isinstance(found, InvalidToken)
    assert problem in found.reason


@pytest.mark.parametrize("claims", [{"exp": NOW_S - 29}, {"iat": NOW_S + 29}, {"nbf": NOW_S + 29}])
def test_the_clock_of_the_issuer_may_differ_by_the_allowed_skew(claims: dict[str, Any]) -> None:
    assert isinstance(validate_signed(signed(**claims), KEYS, RULES, NOW_MS), ValidToken)


def test_a_token_by_another_key_of_the_same_id_is_refused() -> None:
    found = validate_signed(signed(OTHER), KEYS, RULES, NOW_MS)
    assert isinstance(found, InvalidToken)


def test_an_unknown_key_id_is_reported_so_that_keys_are_fetched() -> None:
    with pytest.raises(KeyUnknown) as found:
        validate_signed(signed(header={"alg": "RS256", "kid": "new"}), KEYS, RULES, NOW_MS)
    assert found.value.key_id == "new"


def test_a_public_key_does_not_verify_as_a_shared_secret() -> None:
    text = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(CLAIMS)}"
    mac = hmac.digest(RSA.as_pem(private=False), text.encode(), "sha256")
    found = validate_signed(f"{text}.{encoded(mac)}", KEYS, RULES, NOW_MS)
    assert isinstance(found, InvalidToken)
    assert "algorithm" in found.reason
    with_secret = KeySet([OctKey.generate_key(256, {"kid": "shared"})])
    token = signed(with_secret.keys[0], "HS256")
    assert isinstance(validate_signed(token, with_secret, RULES, NOW_MS), InvalidToken)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(document: object) -> str:
    return encoded(json.dumps(document).encode())


def unsecured(**claims: Any) -> str:
    content = {k: v for k, v in (CLAIMS | claims).items() if v is not None}
    return f"{part({'alg': 'none'})}.{part(content)}."


def test_an_unsecured_token_is_refused_where_tokens_are_signed() -> None:
    assert isinstance(validate_signed(unsecured(), KEYS, RULES, NOW_MS), InvalidToken)


def test_an_unsecured_token_says_a_name_where_they_are_allowed() -> None:
    rules = UnsecuredRules()
    found = validate_unsecured(unsecured(), rules, NOW_MS)
    assert found == ValidToken("alice", (NOW_S + 300) * 1000)
    for claims in ({"exp": NOW_S}, {"iat": NOW_S + 1}, {"exp": None}, {"sub": None}, {"iat": "x"}):
        assert isinstance(validate_unsecured(unsecured(**claims), rules, NOW_MS), InvalidToken)
    assert isinstance(validate_unsecured(signed(), rules, NOW_MS), InvalidToken)
    scoped = UnsecuredRules(required_scope=frozenset({"read", "write"}))
    found = validate_unsecured(unsecured(scope=["read"]), scoped, NOW_MS)
    assert isinstance(found, InvalidToken)
    assert (found.status, found.scope) == ("insufficient_scope", "read write")
    assert isinstance(
        validate_unsecured(unsecured(scope=["read", "write"]), scoped, NOW_MS), ValidToken
    )


VALID = signed()


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_changed_token_is_never_valid(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(VALID) - 1))
    char = data.draw(st.sampled_from("ABCz09-_.=+/"))
    changed = VALID[:position] + char + VALID[position + 1 :]
    try:
        found = validate_signed(changed, KEYS, RULES, NOW_MS)
    except KeyUnknown:
        return
    # The last character of a signature has bits that stand for nothing.
    assert isinstance(found, InvalidToken) or position == len(VALID) - 1 or changed == VALID


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "a.b.c",
        "a" * (1 << 20),
        part({"alg": "RS256", "kid": "rsa"}) + "." * 100_000,
        base64.urlsafe_b64encode(b"[" * 40_000).decode() + ".e30.AAAA",
        f"{part({'alg': 'RS256', 'kid': 7})}.e30.AAAA",
        f"{part({'alg': ['RS256']})}.e30.AAAA",
        f"{part({'alg': 'RS256', 'kid': 'rsa', 'crit': ['b64'], 'b64': False})}.e30.AAAA",
    ],
    ids=range(9),
)
def test_malformed_tokens_are_refused_at_once(token: str) -> None:
    begun = time.monotonic()
    assert isinstance(validate_signed(token, KEYS, RULES, NOW_MS), InvalidToken)
    assert isinstance(validate_unsecured(token, UnsecuredRules(), NOW_MS), InvalidToken)
    assert time.monotonic() - begun < 0.5


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=20))
def test_any_text_is_no_valid_token(header: str, claims: str, signature: str) -> None:
    parts = [encoded(header.encode()), encoded(claims.encode()), signature]
    for token in (".".join(parts), f"{header}.{claims}.{signature}"):
        assert isinstance(validate_signed(token, KEYS, RULES, NOW_MS), InvalidToken)


def document(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def jwks(now: float = 0.0) -> Jwks:
    return Jwks(refresh_s=3600, backoff_s=0.1, backoff_max_s=10, now=now)


def test_a_key_of_an_unknown_kind_does_not_spoil_the_set() -> None:
    keys = json.loads(document(RSA, EC))
    keys["keys"][1:1] = [{"kty": "quantum"}, {"kty": "RSA"}, {"kty": "EC", "crv": "none"}, 7]
    found = parse_jwks(json.dumps(keys).encode())
    assert [key.kid for key in found.keys] == ["rsa", "ec"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": 1}', b"[" * 99999])
def test_a_document_without_keys_changes_nothing(text: bytes) -> None:
    cache = jwks()
    cache.loaded(document(RSA), 0)
    with pytest.raises(JwksError):
        cache.loaded(text, 10)
    assert cache.keys is not None
    assert cache.keys.keys[0].kid == "rsa"


def test_keys_are_fetched_at_once_then_each_interval_and_again_after_a_failure() -> None:
    cache = jwks(now=5)
    assert cache.wait_s(5) == 0
    assert [cache.failed(5) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    cache.loaded(document(RSA), 20)
    assert cache.wait_s(20) == 3600
    assert cache.failed(3620) == 0.1
    assert cache.keys is not None


def test_fetches_for_unknown_keys_stay_rare_under_many_tokens() -> None:
    cache = jwks()
    cache.loaded(document(RSA), 0)
    rng = random.Random(1)
    moments = [t / 10 for t in range(36_000)]
    fetches = sum(cache.should_fetch_for(str(rng.getrandbits(64)), now) for now in moments)
    assert fetches <= 3600 / 10 + 1
    assert cache.should_fetch_for("new", 4000)
    assert not cache.should_fetch_for("new", 4050)
    assert cache.should_fetch_for("new", 4061)
    assert not cache.should_fetch_for("k" * 2000, 9000)
