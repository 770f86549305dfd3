"""AWS roles log in by presigned requests, which a service on this machine checks as STS does."""

import base64
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from lakehead.aws_login import CLUSTER_HEADER, TokenProvider, confluent_callback, login_token
from lakehead.broker.security.principal import KafkaPrincipal
from tests.support.http_places import HttpPlace
from tests.support.sasl_client import SaslClient
from tests.support.watched_node import WatchedNode

REGION, KEY, SECRET, TOKEN = "eu-central-1", "AKIAIOSFODNN7EXAMPLE", "s3cret", "c2Vzc2lvbg=="
ROLE = "arn:aws:iam::123456789012:role/writers"


class FakeSts:
    """Checks a presigned request by signing it again with the secret of its credential."""

    def __init__(self) -> None:
        self.place = HttpPlace(self._respond)
        self.is_down = False
        self.account = "123456789012"

    def _respond(self, target: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if self.is_down:
            return 503, b""
        names = {name.lower(): value for name, value in headers.items()}
        given = dict(parse_qsl(urlsplit(target).query))
        url = f"https://{names['host']}/?Action={given['Action']}&Version={given['Version']}"
        again = AWSRequest("GET", url, headers={CLUSTER_HEADER: names[CLUSTER_HEADER]})
        again.context["timestamp"] = given["X-Amz-Date"]
        auth = _AtTime(Credentials(KEY, SECRET, TOKEN), "sts", REGION, given["X-Amz-Date"])
        auth.add_auth(again)
        made = dict(parse_qsl(urlsplit(str(again.prepare().url)).query))
        if made["X-Amz-Signature"] != given["X-Amz-Signature"]:
            return 403, b'{"Error": {"Code": "SignatureDoesNotMatch"}}'
        arn = f"arn:aws:sts::{self.account}:assumed-role/writers/i-0abc"
        body = f'{{"GetCallerIdentityResponse": {{"GetCallerIdentityResult": {{"Arn": "{arn}"}}}}}}'
        return 200, body.encode()


class _AtTime(SigV4QueryAuth):  # type: ignore[misc]
    """Signs as of a given time."""

    def __init__(self, credentials: Credentials, service: str, region: str, date: str) -> None:
        super().__init__(credentials, service, region, expires=900)
        self._date = date

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        request.context["timestamp"] = self._date
        super()._modify_request_before_signing(request)


@pytest.fixture(scope="module")
def sts() -> Iterator[FakeSts]:
    one = FakeSts()
    with one.place:
        yield one


@pytest.fixture(scope="module")
def node(sts: FakeSts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sts.cluster": "lake-1",
        "sts.accounts": "123456789012",
        "sts.regions": REGION,
        "sts.endpoint": sts.place.url,
    }
    with WatchedNode(tmp_path_factory.mktemp("sts"), settings) as running:
        yield running


def session(secret: str = SECRET) -> boto3.Session:
    return boto3.Session(
        aws_access_key_id=KEY,
        aws_secret_access_key=secret,
        aws_session_token=TOKEN,
        region_name=REGION,
    )


def login(node: WatchedNode, token: str) -> ErrorCode:
    with SaslClient(node.node.services.addresses["CLIENT"].port) as client:
        client.handshake("OAUTHBEARER")
        response = client.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        if response.auth_bytes:
            response = client.authenticate(b"\x01")
        code: ErrorCode = response.error_code
        if code is ErrorCode.none:
            assert client.metadata().brokers
            assert 800 < response.session_lifetime.total_seconds() <= 900
            names = {one.principal for one in node.node.server.connections}
            assert KafkaPrincipal("User", ROLE) in names
        return code


def test_a_role_logs_in_as_itself(node: WatchedNode, sts: FakeSts) -> None:
    token = login_token("lake-1", session=session())
    assert 890 < token.expires_s - time.time() <= 900
    assert login(node, token.value) is ErrorCode.none
    asked = len(sts.place.requests)
    assert login(node, token.value) is ErrorCode.none
    assert len(sts.place.requests) == asked  # it is known until it expires


def test_a_confluent_client_logs_in(node: WatchedNode) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{node.node.services.addresses['CLIENT'].port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": confluent_callback("lake-1", session=session()),
    }
    client = AdminClient(settings)
    client.poll(1)
    assert client.list_topics(timeout=20).brokers
    assert TokenProvider("lake-1", session=session()).token().startswith("aHR0cHM6")


def test_tokens_for_another_cluster_or_by_another_secret_are_refused(node: WatchedNode) -> None:
    failed = ErrorCode.sasl_authentication_failed
    assert login(node, login_token("lake-2", session=session()).value) is failed
    assert login(node, login_token("lake-1", session=session("other")).value) is failed
    assert login(node, login_token("lake-1", "us-west-2", session()).value) is failed


def test_a_changed_url_sends_no_request(node: WatchedNode, sts: FakeSts) -> None:
    asked = len(sts.place.requests)
    value = login_token("lake-1", session=session()).value
    url = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    for changed in (
        url.replace("GetCallerIdentity", "AssumeRole"),
        url.replace("sts.eu-central-1.amazonaws.com", "169.254.169.254"),
        url + "&Extra=1",
    ):
        token = base64.urlsafe_b64encode(changed.encode()).decode().rstrip("=")
        assert login(node, token) is ErrorCode.sasl_authentication_failed
    assert len(sts.place.requests) == asked


def test_another_account_is_refused_and_so_are_all_while_sts_is_down(
    node: WatchedNode, sts: FakeSts
) -> None:
    sts.account = "999999999999"
    try:
        refused = login(node, login_token("lake-1", session=session()).value)
    finally:
        sts.account = "123456789012"
    assert refused is ErrorCode.sasl_authentication_failed
    sts.is_down = True
    try:
        time.sleep(1.1)  # a new second, so another token
        refused = login(node, login_token("lake-1", session=session()).value)
    finally:
        sts.is_down = False
    assert refused is ErrorCode.sasl_authentication_failed
    assert node.is_well
