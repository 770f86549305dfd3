"""Presigned requests to AWS STS: what botocore signs is accepted, whatever else is refused."""

import base64
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.security.sasl.outcome import InvalidToken, ValidToken
from lakehead.broker.security.sasl.sts import (
    CLUSTER_HEADER,
    StsRequest,
    StsRules,
    is_sts_token,
    principal_name,
    sts_identity,
    sts_request,
)
from lakehead.storage.clock import SystemClock
from tests.support.repetitions import examples

NOW_MS = SystemClock().now_ms()
REGION = "eu-central-1"
RULES = StsRules(
    cluster="lake-1", accounts=frozenset({"123456789012"}), regions=frozenset({REGION})
)
SESSION = "arn:aws:sts::123456789012:assumed-role/writers/i-0abc"


def presigned(region: str = REGION, expires: int = 900, cluster: str | None = "lake-1") -> str:
    url = f"https://sts.{region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15"
    headers = {} if cluster is None else {CLUSTER_HEADER: cluster}
    request = AWSRequest("GET", url, headers=headers)
    credentials = Credentials("AKIAIOSFODNN7EXAMPLE", "secret", "c2Vzc2lvbi+/token==")
    SigV4QueryAuth(credentials, "sts", region, expires=expires).add_auth(request)
    return str(request.prepare().url)


SIGNED = presigned()
"""Signed at NOW_MS, however long the other tests take."""


def token(url: str) -> str:
    return base64.urlsafe_b64encode(url.encode()).rstrip(b"=").decode()


def changed(**parameters: str | None) -> str:
    url = urlsplit(presigned())
    pairs = dict(parse_qsl(url.query))
    pairs.update({k.replace("_", "-"): v for k, v in parameters.items() if v is not None})
    for name, value in parameters.items():
        if value is None:
            pairs.pop(name.replace("_", "-"))
    return url._replace(query=urlencode(pairs)).geturl()


def test_a_request_that_botocore_signs_is_sent_unchanged_with_the_clusters_header() -> None:
    url = SIGNED
    assert is_sts_token(token(url))
    found = sts_request(token(url), RULES, NOW_MS)
    assert isinstance(found, StsRequest)
    assert f"https://{found.host}{found.target}" == url
    assert found.headers[CLUSTER_HEADER] == "lake-1"
    assert abs(found.expires_ms - NOW_MS - 900_000) < 5_000
    assert "Signature" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        presigned(region="us-west-2"),
        presigned(cluster=None),
        presigned(expires=901),
        presigned().replace("https://", "http://"),
        presigned().replace("sts.", "s3."),
        presigned().replace("https://", "https://user@"),
        presigned().replace("amazonaws.com/", "amazonaws.com:8443/"),
        presigned().replace("amazonaws.com/", "amazonaws.com.evil.example/"),
        presigned().replace("amazonaws.com/?", "amazonaws.com/path?"),
        presigned().replace("https://sts", "https://169.254.169.254/?x=https://sts"),
        presigned() + "#fragment",
        presigned() + "&Action=AssumeRole",
        presigned() + "&%41ction=AssumeRole",
        presigned() + "&Other=1",
        presigned() + ";Action=AssumeRole",
        presigned().replace("GetCallerIdentity", "AssumeRole"),
        presigned().replace("GetCallerIdentity", "GetCallerIdentity%26Action=AssumeRole"),
        changed(X_Amz_Expires="0"),
        changed(X_Amz_Expires="\uff19"),
        changed(X_Amz_Expires="-1"),
        changed(X_Amz_Date="20200101T000000Z"),
        changed(X_Amz_Date="yesterday"),
        changed(X_Amz_Signature="../../x"),
        changed(X_Amz_Security_Token="a b"),
        changed(X_Amz_SignedHeaders="host"),
        changed(X_Amz_Credential="AKIA/20200101/us-east-1/s3/aws4_request"),
        changed(X_Amz_Signature=None),
        "https://sts.eu-central-1.amazonaws.com/",
        "https://sts.eu-central-1.amazonaws.com/?" + "a=b&" * 20_000,
        "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect",
        presigned() + "\r\nHost: evil",
        "\x00",
    ],
    ids=range(32),
)
def test_any_other_url_is_refused_before_a_request_is_sent(url: str) -> None:
    assert isinstance(sts_request(token(url), RULES, NOW_MS), InvalidToken)


@pytest.mark.parametrize("age_ms", [1_000_000, -1_000_000])
def test_a_token_is_good_for_fifteen_minutes(age_ms: int) -> None:
    found = sts_request(token(SIGNED), RULES, NOW_MS + age_ms)
    assert isinstance(found, InvalidToken)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=80), st.binary(max_size=80))
def test_any_text_sends_no_request(text: str, data: bytes) -> None:
    texts = [text, base64.urlsafe_b64encode(data).decode(), token("https://sts" + quote(text))]
    for one in texts:
        assert isinstance(sts_request(one, RULES, NOW_MS), InvalidToken)


def response(arn: str) -> bytes:
    result = f'{{"Account": "1", "Arn": "{arn}", "UserId": "AROA:i-0abc"}}'
    return f'{{"GetCallerIdentityResponse": {{"GetCallerIdentityResult": {result}}}}}'.encode()


def test_a_session_of_a_role_is_the_role() -> None:
    role = "arn:aws:iam::123456789012:role/writers"
    assert sts_identity(200, response(SESSION), RULES, 5) == ValidToken(role, 5)
    xml = f"<GetCallerIdentityResponse><Arn>{SESSION}</Arn></GetCallerIdentityResponse>"
    assert sts_identity(200, xml.encode(), RULES, 5) == ValidToken(role, 5)


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:iam::123456789012:user/teams/alice",
        "arn:aws:iam::123456789012:root",
        "arn:aws:sts::123456789012:federated-user/alice",
    ],
)
def test_other_identities_keep_their_arn(arn: str) -> None:
    assert principal_name(arn) == arn
    assert isinstance(sts_identity(200, response(arn), RULES, 5), ValidToken)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b'{"Error": {"Code": "SignatureDoesNotMatch"}}'),
        (400, b""),
        (500, response(SESSION)),
        (302, response(SESSION)),
        (200, b""),
        (200, b"{}"),
        (200, b'{"GetCallerIdentityResponse": 1}'),
        (200, b"[" * 60_000),
        (200, response("arn:aws:sts::123456789012:assumed-role/a\\nb/c")),
        (200, response(SESSION.replace("123456789012", "999999999999"))),
        (200, f"<Arn>{SESSION}</Arn><Arn>{SESSION}</Arn>".encode()),
        (200, response(SESSION) + b" " * 70_000),
    ],
    ids=range(12),
)
def test_a_response_without_an_allowed_identity_proves_nothing(status: int, body: bytes) -> None:
    assert isinstance(sts_identity(status, body, RULES, 5), InvalidToken)
