"""Bytes of clients without a name: frames, messages of SCRAM, certificates, tokens for AWS STS."""

import asyncio
import base64
from collections.abc import Sequence
from functools import cache
from typing import Any, cast
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from lakehead.broker import api
from lakehead.broker.network.authentication import Authenticator, SaslListener
from lakehead.broker.network.connection import Connection
from lakehead.broker.network.listeners import Listener
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import RequestHeader, encode_request, read_header
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.audit import AuditLog
from lakehead.broker.security.development_certs import utc
from lakehead.broker.security.sasl.oauthbearer import OAuthBearerServer
from lakehead.broker.security.sasl.outcome import (
    Authenticated,
    Challenge,
    InvalidToken,
    ValidToken,
)
from lakehead.broker.security.sasl.plain import PlainServer, PlainUsers
from lakehead.broker.security.sasl.scram import (
    MIN_ITERATIONS,
    ScramClient,
    ScramIdentity,
    ScramMechanism,
    ScramServer,
    principal_of,
)
from lakehead.broker.security.sasl.sts import StsRules, sts_identity, sts_request
from lakehead.broker.security.security_protocol import SecurityProtocol
from lakehead.broker.security.ssl_principal import SslPrincipalMapper
from lakehead.storage.clock import SystemClock
from lakehead.storage.tasks import TaskScope
from tests.property.test_connection_frames import Requests, Transport

MECHANISM = ScramMechanism(name="SCRAM-SHA-256", number=1, hash_name="sha256")
RECEIVE_MAX = 64 << 10
_USERS = PlainUsers({"alice": "secret"})
_SALT, _NONCE, _PASSWORD = b"salt-of-all", "servernonce", "secret"
_LISTENER = "CLIENT"
_TURNS_MAX = 20
REGISTRY = api.registry()


class _Tokens:
    """A validator of the one token that is good."""

    def takes(self, token: str) -> bool:
        return True

    async def validate(self, token: str) -> ValidToken | InvalidToken:
        if token != "good":
            return InvalidToken("another token")
        return ValidToken("carol", SystemClock().now_ms() + 60_000)

    async def run(self) -> None: ...


class _Versions:
    """Serves ApiVersions to clients without a name."""

    registry = REGISTRY

    def respond(self, connection: Connection, header: RequestHeader, frame: memoryview) -> Any:
        decode(header.schema.request_class, frame, header.body)
        module = header.schema.response_module
        return entity(module, "ApiVersionsResponse", error_code=ErrorCode.none, api_keys=())


class _Guarded(Requests):
    """A server whose only listener has SASL."""

    request_max_bytes = 1 << 20

    def __init__(self, authenticator: Authenticator) -> None:
        super().__init__()
        self._authenticator = authenticator
        self.served = 0

    def opened(self, connection: Connection) -> None:
        self._authenticator.watch(connection)

    def handle(self, connection: Connection, frame: bytearray) -> bool:
        if connection.gate is not None and connection.gate.takes(frame):
            return True
        assert connection.is_authenticated, "served before authentication"
        self.served += 1
        try:
            read_header(memoryview(frame), REGISTRY)
        except (MalformedFrame, UnsupportedVersion):
            connection.abort()
        else:
            connection.slot().complete([b"answer"])
        return True


def _identity(user: str, is_token: bool) -> ScramIdentity:
    return ScramIdentity(_credential(), principal_of(user))


@cache
def _credential() -> Any:
    return MECHANISM.credential_of(_PASSWORD, _SALT, MIN_ITERATIONS)


def _scram() -> ScramServer:
    return ScramServer(MECHANISM, _identity, _NONCE)


def read_frames_before_login(data: bytes) -> None:
    """The bytes of a connection to a listener with SASL, in pieces."""
    listener = SaslListener(
        enabled=("PLAIN", MECHANISM.name, "OAUTHBEARER"),
        mechanisms={
            "PLAIN": lambda: PlainServer(_USERS),
            MECHANISM.name: _scram,
            "OAUTHBEARER": OAuthBearerServer,
        },
        max_reauth_ms={"PLAIN": 60_000},
        max_receive_size=RECEIVE_MAX,
        validators=(_Tokens(),),
    )
    with capture_logs() as logs:
        asyncio.run(_connected(data, listener))
    assert not any(event["event"] == "authentication_crashed" for event in logs), logs


async def _connected(data: bytes, listener: SaslListener) -> None:
    crashes: list[BaseException] = []
    scope = TaskScope(lambda _name, error: crashes.append(error))
    asyncio.get_running_loop().set_exception_handler(
        lambda _, found: crashes.append(found.get("exception") or RuntimeError(found["message"]))
    )
    clock = SystemClock()
    audit = AuditLog(clock, logs_allowed=True)
    authenticator = Authenticator(
        {_LISTENER: listener}, _Versions(), clock, scope, audit, delay_s=0.0
    )
    server, transport = _Guarded(authenticator), Transport()
    place = Listener(name=_LISTENER, protocol=SecurityProtocol.SASL_PLAINTEXT)
    connection = Connection(cast("Any", server), place)
    connection.connection_made(cast("asyncio.Transport", transport))
    size, at = 1 + len(data) % 97, 0
    while at < len(data) and not transport.is_aborted:
        room = connection.get_buffer(-1)
        taken = min(len(room), size, len(data) - at)
        room[:taken] = data[at : at + taken]
        room.release()
        at += taken
        connection.buffer_updated(taken)
        for _ in range(_TURNS_MAX):
            if connection.is_idle or transport.is_aborted:
                break
            await asyncio.sleep(0)
    await scope.close()
    assert not crashes, crashes


def _frame(key: int, version: int, name: str, **fields: Any) -> bytes:
    module = schema(key, version).request_module
    return encode_request(key, version, 1, entity(module, name, **fields))


def frames_before_login_seeds() -> list[bytes]:
    versions = _frame(
        *(18, 3, "ApiVersionsRequest"),
        client_software_name="c",
        client_software_version="1",
    )
    logins = {
        "PLAIN": [b"\0alice\0secret"],
        MECHANISM.name: _scram_messages(),
        "OAUTHBEARER": [b"n,,\x01auth=Bearer good\x01\x01"],
        "GSSAPI": [],
    }
    seeds = []
    for mechanism, messages in logins.items():
        for version in (0, 1):
            handshake = _frame(17, version, "SaslHandshakeRequest", mechanism=mechanism)
            rest = [
                _frame(36, 2, "SaslAuthenticateRequest", auth_bytes=message)
                if version
                else len(message).to_bytes(4, "big") + message
                for message in messages
            ]
            seeds.append(b"".join([versions, handshake, *rest, versions]))
    return seeds


@cache
def _scram_messages() -> list[bytes]:
    def salted(salt: bytes, iterations: int) -> bytes:
        return MECHANISM.salted_password(_PASSWORD, salt, iterations)

    client, server = ScramClient(MECHANISM, "alice", salted, "clientnonce"), _scram()
    first = client.first()
    challenge = server.evaluate(first)
    assert isinstance(challenge, Challenge)
    return [first, client.final(challenge.message)]


def read_scram(data: bytes) -> None:
    """Two messages of one exchange, and a third: the client that knows the password gets in."""
    server, messages = _scram(), data.split(b"\n", 2)
    for number, message in enumerate(messages):
        outcome = server.evaluate(message)
        if isinstance(outcome, Authenticated):
            assert number == 1
            assert message == _proof_of(messages[0], message), "let in without a proof"


def _proof_of(first: bytes, final: bytes) -> bytes:
    """Return the final message of a client that knows the password, as this one sent it."""
    without, _, proof = final.rpartition(b",p=")
    server_first = _scram().evaluate(first)
    assert isinstance(server_first, Challenge)
    bare = first.split(b",", 2)[2]
    signed = b",".join((bare, server_first.message, without))
    salted = MECHANISM.salted_password(_PASSWORD, _SALT, MIN_ITERATIONS)
    key = MECHANISM.hmac(salted, b"Client Key")
    signature = MECHANISM.hmac(MECHANISM.hash(key), signed)
    right = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    assert base64.b64decode(proof) == right, "let in with another proof"
    return without + b",p=" + proof


def scram_seeds() -> list[bytes]:
    return [
        b"\n".join(_scram_messages()),
        b"n,a=alice,n=alice,r=x,tokenauth=true\nc=biws,r=x,p=AA=",
    ]


_MAPPER = SslPrincipalMapper("RULE:^CN=([^,]*),OU=.*$/$1/L,DEFAULT")


def read_certificate(data: bytes) -> object:
    """The certificate of a client that TLS has let in: its name."""
    found = _MAPPER.principal(data)
    assert found.principal_type == "User"
    return found


@cache
def certificate_seeds() -> list[bytes]:
    key = ec.derive_private_key(11, ec.SECP256R1())
    begins = utc(1_700_000_000_000)
    names: Sequence[x509.Name] = [
        x509.Name(
            [
                x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, 'a "b", + c '),
                x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
            ]
        ),
        x509.Name(
            [
                x509.RelativeDistinguishedName(
                    [
                        x509.NameAttribute(NameOID.COMMON_NAME, "#bob"),
                        x509.NameAttribute(NameOID.USER_ID, "7"),
                    ]
                ),
                x509.RelativeDistinguishedName(
                    [x509.NameAttribute(NameOID.EMAIL_ADDRESS, "b@example")]
                ),
            ]
        ),
        x509.Name([]),
    ]
    return [
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=7,
            not_valid_before=begins,
            not_valid_after=begins.replace(year=2040),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
        for name in names
    ]


_STS_RULES = StsRules(
    cluster="lake", accounts=frozenset({"123456789012"}), regions=frozenset({"eu-central-1"})
)
_STS_NOW_MS = 1_700_000_000_000
_STS_FIELDS = {
    "Action": "GetCallerIdentity",
    "Version": "2011-06-15",
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": "AKIAABCDEFGHIJKLMNOP/20231114/eu-central-1/sts/aws4_request",
    "X-Amz-Date": "20231114T221320Z",
    "X-Amz-Expires": "900",
    "X-Amz-SignedHeaders": "host;x-lakehead-cluster",
    "X-Amz-Signature": "ab" * 32,
}


def read_sts(data: bytes) -> None:
    """A URL that stands for a token, and after a zero a response of STS."""
    url, _, body = data.partition(b"\0")
    token = base64.urlsafe_b64encode(url).decode()
    for text in (token, url.decode("latin-1")):
        found = sts_request(text, _STS_RULES, _STS_NOW_MS)
        if not isinstance(found, InvalidToken):
            assert found.host == "sts.eu-central-1.amazonaws.com", "another host"
            assert found.target.startswith("/?")
            assert not set(found.target) & set(" \r\n"), "another request"
    for status in (200, 403):
        sts_identity(status, body, _STS_RULES, _STS_NOW_MS)


def sts_seeds() -> list[bytes]:
    url = f"https://sts.eu-central-1.amazonaws.com/?{urlencode(_STS_FIELDS)}".encode()
    arn = "arn:aws:sts::123456789012:assumed-role/writer/i-1"
    in_json = f'{{"GetCallerIdentityResponse":{{"GetCallerIdentityResult":{{"Arn":"{arn}"}}}}}}'
    return [url + b"\0" + in_json.encode(), url + b"\0" + f"<Arn>{arn}</Arn>".encode()]
