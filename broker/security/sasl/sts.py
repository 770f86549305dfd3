"""Names of AWS roles by presigned requests to AWS STS, sent as OAUTHBEARER tokens.

A client signs a request GetCallerIdentity with its own credentials and sends the URL in place of a
token; the broker sends this request to STS, which checks the signature and returns the identity.
The broker keeps no key and needs no rights in AWS. The token is the URL in Base64, URL-safe::

    https://sts.eu-central-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15
        &X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=...&X-Amz-Date=...&X-Amz-Expires=900
        &X-Amz-Security-Token=...&X-Amz-SignedHeaders=host%3Bx-lakehead-cluster&X-Amz-Signature=...

The URL comes from a stranger, so nothing of it is free: the host is one of STS in an allowed
region, each parameter is in a list and stands there once. The signature covers the header
`x-lakehead-cluster`, which is not in the URL: the broker adds its own value, so STS refuses a
token that was signed for another cluster.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import SplitResult, parse_qsl, urlsplit

from lakehead.broker.security.sasl.outcome import InvalidToken, ValidToken

CLUSTER_HEADER = "x-lakehead-cluster"
EXPIRES_MAX_S = 900
"""Longest life of a token, as AWS allows it for its own services."""
CLOCK_SKEW_S = 300
"""AWS accepts requests that are signed so much before or after its own time."""
URL_MAX = 16 << 10
RESPONSE_MAX = 64 << 10
_HOST = re.compile(
    r"sts\.amazonaws\.com|sts(?:-fips)?\.(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?"
)
_GLOBAL_REGION = "us-east-1"
_FIXED = {
    "Action": "GetCallerIdentity",
    "Version": "2011-06-15",
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-SignedHeaders": f"host;{CLUSTER_HEADER}",
}
_NEEDED = {*_FIXED, "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Signature"}
_ALLOWED = {*_NEEDED, "X-Amz-Security-Token"}
_CREDENTIAL = re.compile(
    r"[A-Z0-9]{16,128}/(?P<day>\d{8})/(?P<region>[-a-z0-9]+)/sts/aws4_request", re.ASCII
)
_FORMS = {
    "X-Amz-Signature": re.compile(r"[0-9a-f]{64}"),
    "X-Amz-Security-Token": re.compile(r"[A-Za-z0-9+/]{1,8192}={0,2}"),
}
_ARN = re.compile(
    r"arn:(?P<partition>aws[-a-z]*):(?P<service>sts|iam)::(?P<account>\d{12}):"
    r"(?P<kind>assumed-role|federated-user|user|root)(?:/(?P<name>[\w+=,.@/-]+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StsRules:
    """Tokens that are accepted: for the audience `cluster`, by AWS accounts, of regions' STS."""

    cluster: str
    accounts: frozenset[str]
    regions: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StsRequest:
    """A request to STS: send it to `host` with `headers`, path and query unchanged."""

    host: str
    target: str
    headers: Mapping[str, str]
    expires_ms: int

    def __repr__(self) -> str:
        return f"StsRequest(host={self.host!r})"


def is_sts_token(token: str) -> bool:
    """Return true if a token has the form of a presigned URL, and not that of a JWT."""
    return token.startswith("aHR0cHM6") and "." not in token


def sts_request(token: str, rules: StsRules, now_ms: int) -> StsRequest | InvalidToken:
    """Return the request that checks a token, if every part of it is allowed."""
    url = _url(token)
    if url is None:
        return InvalidToken("the token is not a URL in Base64")
    host = _HOST.fullmatch(url.netloc)
    if url.scheme != "https" or host is None or url.path not in {"", "/"} or url.fragment:
        return InvalidToken("the token is not a URL of AWS STS")
    region = host["region"] or _GLOBAL_REGION
    try:
        pairs = parse_qsl(url.query, keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError:
        return InvalidToken("the query of the token is malformed")
    found = dict(pairs)
    if len(found) < len(pairs) or not _NEEDED <= found.keys() <= _ALLOWED:
        return InvalidToken("the token has other parameters than a presigned GetCallerIdentity")
    wrong = [name for name, value in _FIXED.items() if found[name] != value]
    wrong += [n for n, form in _FORMS.items() if n in found and not form.fullmatch(found[n])]
    credential = _CREDENTIAL.fullmatch(found["X-Amz-Credential"])
    if wrong or credential is None:
        return InvalidToken(f"the token has another {', '.join(wrong) or 'X-Amz-Credential'}")
    if region not in rules.regions or credential["region"] != region:
        return InvalidToken("the token is for the STS of a region that is not allowed")
    times = _times(found["X-Amz-Date"], found["X-Amz-Expires"])
    if times is None or credential["day"] != found["X-Amz-Date"][:8]:
        return InvalidToken("the times of the token are malformed")
    signed_ms, expires_ms = times
    if not signed_ms - CLOCK_SKEW_S * 1000 <= now_ms < expires_ms:
        return InvalidToken("the token has expired, or is not valid yet")
    return StsRequest(
        host=url.netloc,
        target=f"/?{url.query}",
        headers={"Host": url.netloc, CLUSTER_HEADER: rules.cluster, "Accept": "application/json"},
        expires_ms=expires_ms,
    )


def sts_identity(
    status: int, body: bytes, rules: StsRules, expires_ms: int
) -> ValidToken | InvalidToken:
    """Return what the response of STS to a token's request proves."""
    if status in {400, 403}:
        return InvalidToken("AWS STS refuses the token: its signature, its time or its cluster")
    arn = _arn(body) if status == 200 else None
    found = None if arn is None else _ARN.fullmatch(arn)
    if found is None:
        return InvalidToken(f"AWS STS returned no identity, status {status}")
    if found["account"] not in rules.accounts:
        return InvalidToken(f"the AWS account {found['account']} is not allowed")
    return ValidToken(principal_name(arn or ""), expires_ms)


def principal_name(arn: str) -> str:
    """Return the name of a principal by its ARN: that of the role for a session of the role, so
    that access rules name roles. Paths of roles are not in it, since STS does not return them.
    """
    found = _ARN.fullmatch(arn)
    if found is None or found["kind"] != "assumed-role" or not found["name"]:
        return arn
    role = found["name"].partition("/")[0]
    return f"arn:{found['partition']}:iam::{found['account']}:role/{role}"


def _url(token: str) -> SplitResult | None:
    if len(token) > URL_MAX:
        return None
    try:
        padded = token.rstrip("=")
        data = base64.b64decode(padded + "=" * (-len(padded) % 4), altchars=b"-_", validate=True)
        text = data.decode("ascii")
        return urlsplit(text) if text.isprintable() and " " not in text else None
    except ValueError:
        return None


def _times(date: str, expires: str) -> tuple[int, int] | None:
    """Return when a request was signed and when it expires, in milliseconds."""
    if not (expires.isascii() and expires.isdecimal() and len(expires) <= 3):
        return None
    seconds = int(expires)
    try:
        signed = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    signed_ms = int(signed.timestamp() * 1000)
    return (signed_ms, signed_ms + seconds * 1000) if 0 < seconds <= EXPIRES_MAX_S else None


def _arn(body: bytes) -> str | None:
    """Return the ARN in a response, which STS writes as JSON, and its emulators as XML."""
    if len(body) > RESPONSE_MAX:
        return None
    if body.lstrip().startswith(b"<"):
        matches = re.findall(rb"<Arn>([^<>&]{1,2048})</Arn>", body)
        return matches[0].decode(errors="replace") if len(matches) == 1 else None
    try:
        result = json.loads(body)["GetCallerIdentityResponse"]["GetCallerIdentityResult"]
        arn = result["Arn"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return arn if isinstance(arn, str) else None
