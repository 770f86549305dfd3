"""Connections to the brokers of the cluster that is imported, for what librdkafka does not give:
whole batches, and quotas.

TLS, SASL/PLAIN and SASL/SCRAM, by the settings of the client that reads the rest.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import PeerChannel, TcpNetwork
from lakehead.broker.protocol.api import API_VERSIONS_KEY, schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.key_store import client_context
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS, ScramClient, secure_text
from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import BrokerUnavailable, RequestRefused, SettingsError

_METADATA, _HANDSHAKE, _AUTHENTICATE = 3, 17, 36
_RESPONSE_MAX = 1 << 28
_ELEMENTS_MAX = 10_000_000
_RESPONSE_S = 60.0
_TRIES = 8
_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    }
)
"""Errors after which another try, with the leader of then, helps."""
Fields = Callable[[Any], Mapping[str, Any]]
"""Returns the fields of a request; it gets the module of the request's classes."""
_Result = TypeVar("_Result")


class SourceMoved(Exception):
    """A partition has another leader, or none at the moment."""


def check_partition(code: ErrorCode, place: str) -> None:
    """Raise SourceMoved or RequestRefused for an error of a partition."""
    if code in _MOVED:
        raise SourceMoved(f"{place}: {code.name}")
    if code is not ErrorCode.none:
        raise RequestRefused(f"{place}: the source responds {code.name.upper()}")


class SourceBrokers:
    """A connection to each broker that is needed. `settings` are librdkafka's.

    Methods raise BrokerUnavailable, RequestRefused, SettingsError.
    """

    def __init__(self, settings: Mapping[str, str], rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        self._network = TcpNetwork(self._context, response_max=_RESPONSE_MAX)
        self._channels: dict[int, SourceChannel] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    async def request(self, key: int, newest: int, name: str, fields: Fields) -> Any:
        """Send a request that any broker handles; return the response."""

        async def send() -> Any:
            return await (await self._any()).send(key, newest, name, fields)

        return await self._tried(send)

    async def at_leader(
        self, place: tuple[str, int], send: Callable[["SourceChannel"], Awaitable[_Result]]
    ) -> _Result:
        """Return what `send` gets from the leader of a partition; after SourceMoved of it, from the
        next one.
        """

        async def once() -> _Result:
            return await send(await self._leader(place))

        return await self._tried(once)

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def _tried(self, send: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of the first try that succeeds. Each begins with new connections."""
        pause = Backoff(self._rng, first_s=_FIRST_PAUSE_S, most_s=_PAUSE_MAX_S)
        reason: Exception | None = None
        for _ in range(_TRIES):
            if reason is not None:
                await pause.wait()
            try:
                return await send()
            except (OSError, TimeoutError, SourceMoved) as error:
                reason = error
                self.close()
                self._leaders.clear()
            except MalformedFrame as error:
                raise BrokerUnavailable(f"the source sends no valid response: {error}") from error
        addresses = self._settings["bootstrap.servers"]
        raise BrokerUnavailable(f"brokers at {addresses} do not respond: {reason}") from reason

    async def _leader(self, place: tuple[str, int]) -> "SourceChannel":
        topic, partition = place
        if place not in self._leaders:
            await self._read_leaders(topic)
        node = self._leaders.get(place, -1)
        if node not in self._addresses:
            raise SourceMoved(f"{topic}-{partition} has no leader")
        if node not in self._channels:
            self._channels[node] = await self._open(*self._addresses[node])
        return self._channels[node]

    async def _read_leaders(self, topic: str) -> None:
        def fields(module: Any) -> dict[str, Any]:
            return {
                "topics": [entity(module, "MetadataRequestTopic", name=topic)],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }

        found = await (await self._any()).send(_METADATA, 9, "MetadataRequest", fields)
        self._addresses = {int(one.node_id): (one.host, int(one.port)) for one in found.brokers}
        (described,) = found.topics
        check_partition(described.error_code, f"topic {topic}")
        self._leaders |= {
            (topic, int(one.partition_index)): int(one.leader_id) for one in described.partitions
        }

    async def _any(self) -> "SourceChannel":
        for channel in self._channels.values():
            return channel
        error: OSError = ConnectionRefusedError("no address")
        for address in self._settings["bootstrap.servers"].split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise SettingsError(f"the address of a broker is HOST:PORT, not {address!r}")
            try:
                self._channels[-1] = await self._open(host.strip("[]"), int(port))
            except OSError as failed:
                error = failed
            else:
                return self._channels[-1]
        raise error

    async def _open(self, host: str, port: int) -> "SourceChannel":
        opened = await self._network.connect(host, port, lambda: None)
        channel = SourceChannel(opened)
        try:
            if self._protocol.startswith("SASL_"):
                await self._authenticate(channel)
            await channel.negotiate()
        except BaseException as error:
            channel.close()
            if isinstance(error, SaslFailure):
                raise RequestRefused(f"{host}:{port}: {error}") from error
            raise
        return channel

    async def _authenticate(self, channel: "SourceChannel") -> None:
        settings = self._settings
        wanted = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
        user, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
        if wanted != "PLAIN" and wanted not in SCRAM_MECHANISMS:
            raise SettingsError(
                f"sasl.mechanism {wanted or 'is not set'}: an import logs in by PLAIN, "
                f"{' or '.join(SCRAM_MECHANISMS)}; give it a user of one of them"
            )
        shaken = await channel.exchange(
            _HANDSHAKE, 1, "SaslHandshakeRequest", lambda _: {"mechanism": wanted}
        )
        if shaken.error_code is not ErrorCode.none:
            raise SaslFailure(f"the source has no {wanted}")
        if wanted == "PLAIN":
            await _send_token(channel, f"\0{user}\0{password}".encode())
            return
        mechanism = SCRAM_MECHANISMS[wanted]
        salted = partial(mechanism.salted_password, password)
        client = ScramClient(mechanism, user, salted, secure_text(self._rng))
        challenge = await _send_token(channel, client.first())
        client.check(await _send_token(channel, client.final(challenge)))

    def _context(self) -> ssl.SSLContext | None:
        if not self._protocol.endswith("SSL"):
            return None
        values = _java_names(self._settings)
        context = client_context(lambda name: values.get(name, ""))
        if self._settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def _java_names(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of TLS by the names that Java's clients have for them."""
    renamed = {
        "ssl.ca.location": "ssl.truststore.location",
        "ssl.ca.pem": "ssl.truststore.certificates",
        "ssl.certificate.pem": "ssl.keystore.certificate.chain",
        "ssl.key.pem": "ssl.keystore.key",
    }
    values = {
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.type": "PKCS12" if "ssl.keystore.location" in settings else "PEM",
    } | {renamed.get(name, name): value for name, value in settings.items()}
    chain, key = settings.get("ssl.certificate.location"), settings.get("ssl.key.location")
    if chain and chain == key:
        values["ssl.keystore.location"] = chain
    elif chain and key:
        try:
            values["ssl.keystore.certificate.chain"] = Path(chain).read_text(encoding="ascii")
            values["ssl.keystore.key"] = Path(key).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"ssl.certificate.location, ssl.key.location: {error}") from None
    return values


class SourceChannel:
    """A connection to one broker. One request at a time."""

    def __init__(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._versions: dict[int, tuple[int, int]] = {}
        self._sent = 0

    async def negotiate(self) -> None:
        """Learn which versions the broker supports (KIP-35)."""
        found = await self.exchange(API_VERSIONS_KEY, 0, "ApiVersionsRequest", lambda _: {})
        self._versions = {
            int(one.api_key): (int(one.min_version), int(one.max_version)) for one in found.api_keys
        }

    async def send(self, key: int, newest: int, name: str, fields: Fields) -> Any:
        """Send a request in the newest version that both sides have; return the response. Raises
        RequestRefused without such a version, OSError, TimeoutError, MalformedFrame.
        """
        return await self.exchange(key, self._version(key, newest, name), name, fields)

    def _version(self, key: int, newest: int, name: str) -> int:
        oldest, supported = self._versions.get(key, (0, -1))
        version = min(newest, supported)
        if version < oldest:
            raise RequestRefused(f"the source does not support {name}")
        return version

    async def exchange(self, key: int, version: int, name: str, fields: Fields) -> Any:
        """Send a request in this version; return the response."""
        body = await self._body(key, version, name, fields)
        return decode(schema(key, version).response_class, body, 0, _ELEMENTS_MAX)

    async def send_for_body(
        self, key: int, newest: int, name: str, fields: Fields
    ) -> tuple[int, memoryview]:
        """Do as `send`, but return the version, and the response as it came, without its header."""
        version = self._version(key, newest, name)
        return version, await self._body(key, version, name, fields)

    async def _body(self, key: int, version: int, name: str, fields: Fields) -> memoryview:
        message = schema(key, version)
        request = entity(message.request_module, name, **fields(message.request_module))
        self._sent = self._sent + 1 & 0x7FFFFFFF
        async with asyncio.timeout(_RESPONSE_S):
            response = await self._channel.send(encode_request(key, version, self._sent, request))
        if int.from_bytes(response[:4], "big") != self._sent:
            raise MalformedFrame("a response to another request")
        return response[5 if message.flexible_response else 4 :]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


async def _send_token(channel: SourceChannel, message: bytes) -> bytes:
    response = await channel.exchange(
        _AUTHENTICATE, 1, "SaslAuthenticateRequest", lambda _: {"auth_bytes": message}
    )
    if response.error_code is not ErrorCode.none:
        raise SaslFailure(response.error_message or "the source does not know the user")
    return bytes(response.auth_bytes)
