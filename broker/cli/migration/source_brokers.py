"""Connections to the brokers of the cluster that is imported, for what librdkafka does not give:
whole batches, offsets of many partitions at once, ids of topics, and quotas.

TLS, and SASL by PLAIN, SCRAM or OAUTHBEARER, by the settings of the client that reads the rest.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration import source_tokens
from lakehead.broker.cli.migration.source_tokens import SourceTokens
from lakehead.broker.cluster.inter_broker_client import PeerChannel, TcpNetwork
from lakehead.broker.cluster.sasl_login import (
    PlainLogin,
    SaslLogin,
    ScramLogin,
    TokenLogin,
    log_in,
)
from lakehead.broker.protocol.api import API_VERSIONS_KEY, schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.key_store import client_context, load_material
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS
from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import BrokerUnavailable, RequestRefused, SettingsError

_METADATA, _METADATA_NEWEST = 3, 12
_LIST_GROUPS, _LIST_GROUPS_NEWEST = 16, 5
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
        ErrorCode.offset_not_available,  # of a new leader, for a moment (KIP-207)
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Errors after which another try, with the leader of then, helps, unless the topic is gone."""
LOADING = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
"""Errors of a coordinator after which another try helps."""
Fields = Callable[[Any], Mapping[str, Any]]
"""Returns the fields of a request; it gets the module of the request's classes."""
_Result = TypeVar("_Result")


class Incarnation(NamedTuple):
    """A topic from its creation to its deletion: its name, and its id as 32 hex digits (KIP-516),
    empty where the source has none.
    """

    name: str
    topic_id: str


class Place(NamedTuple):
    """A partition."""

    topic: Incarnation
    partition: int

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    """A topic that the source has now."""

    topic: Incarnation
    leaders: Mapping[int, int]
    """The node that leads each partition, -1 for none."""
    is_internal: bool


class ListedGroup(NamedTuple):
    """A group, its kind in lower case ("share", "classic"; empty where the source has one kind
    only), and the node that coordinates it.
    """

    name: str
    kind: str
    node: int


class SourceMoved(Exception):
    """A partition has another leader, or none at the moment."""


class TopicGone(Exception):
    """A topic was deleted at the source, and perhaps created again."""


class TopicChanged(RequestRefused):
    """A topic of the source is not what was imported of it: it has lost records, or is another one
    of the same name.
    """


def check_partition(code: ErrorCode, place: Place) -> None:
    """Raise SourceMoved or RequestRefused for an error of a partition."""
    if code in _MOVED:
        raise SourceMoved(f"{place} is not there at the moment ({code.name.upper()})")
    if code is not ErrorCode.none:
        raise RequestRefused(f"{place}: the source responds {code.name.upper()}")


class SourceBrokers:
    """A connection to each broker that is needed. `settings` are librdkafka's; `tokens` are those
    of a login by OAUTHBEARER.

    Methods raise BrokerUnavailable, RequestRefused, SettingsError.
    """

    def __init__(
        self, settings: Mapping[str, Any], tokens: SourceTokens | None, rng: random.Random
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._rng = rng
        self._protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        self._network = TcpNetwork(self._context, response_max=_RESPONSE_MAX)
        self._channels: dict[int, SourceChannel] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._topics: dict[str, ListedTopic] | None = None

    async def request(self, key: int, newest: int, name: str, fields: Fields) -> Any:
        """Send a request that any broker handles; return the response."""

        async def send() -> Any:
            return await (await self._any()).send(key, newest, name, fields)

        return await self.tried(send)

    async def topics(self) -> Mapping[str, ListedTopic]:
        """Return the topics that the source has now, by name."""
        self._topics = None
        return await self.tried(self._listed)

    async def groups(self) -> list[str]:
        """Return the groups that may have committed offsets: all but share groups."""
        found = await self.tried(self.listed_groups)
        return sorted({one.name for one in found if one.kind != "share"})

    async def listed_groups(self) -> list[ListedGroup]:
        """Return all groups, each with the node that coordinates it. Raises OSError, TimeoutError,
        SourceMoved, RequestRefused: one try of several.
        """
        await self._listed()
        found = []
        for node in self._addresses:
            response = await (await self.channel(node)).send(
                _LIST_GROUPS,
                _LIST_GROUPS_NEWEST,
                "ListGroupsRequest",
                lambda _: {"states_filter": [], "types_filter": []},
            )
            if response.error_code in LOADING:
                raise SourceMoved(f"node {node}: {response.error_code.name.upper()}")
            if response.error_code is not ErrorCode.none:
                raise RequestRefused(
                    f"consumer groups: the source responds {response.error_code.name.upper()}"
                )
            found += [
                ListedGroup(str(one.group_id), getattr(one, "group_type", "").lower(), node)
                for one in response.groups
            ]
        return found

    async def at_leader(
        self, place: Place, send: Callable[["SourceChannel"], Awaitable[_Result]]
    ) -> _Result:
        """Return what `send` gets from the leader of a partition; after SourceMoved of it, from the
        next one. Raises TopicGone.
        """

        async def once() -> _Result:
            node = self._leader(await self._listed(), place)
            if node is None:
                raise TopicGone(f"{place} is not at the source any more")
            return await send(await self.channel(node))

        return await self.tried(once)

    async def by_leader(self, places: Iterable[Place]) -> dict[int, list[Place]]:
        """Return places by their leaders; those of topics that are gone are missing. Raises
        SourceMoved.
        """
        listed = await self._listed()
        found: dict[int, list[Place]] = {}
        for place in places:
            node = self._leader(listed, place)
            if node is not None:
                found.setdefault(node, []).append(place)
        return found

    @staticmethod
    def _leader(listed: Mapping[str, ListedTopic], place: Place) -> int | None:
        """Return the node that leads a partition; None: the topic is gone. Raises SourceMoved."""
        one = listed.get(place.topic.name)
        if one is None or one.topic != place.topic or place.partition not in one.leaders:
            return None
        if (node := one.leaders[place.partition]) < 0:
            raise SourceMoved(f"{place} has no leader")
        return node

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def tried(self, send: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of the first try that succeeds. Each begins with new connections, and
        with the leaders of then, after an OSError, TimeoutError or SourceMoved.
        """
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
                self._topics = None
            except MalformedFrame as error:
                self.close()  # the next response may be the rest of this one
                raise BrokerUnavailable(
                    f"the source sends no valid response: {error}{self._hint()}"
                ) from error
        addresses = self._settings["bootstrap.servers"]
        if isinstance(reason, SourceMoved):
            raise BrokerUnavailable(f"the source at {addresses}: {reason}") from reason
        shown = str(reason) or "no response in time"
        if isinstance(reason, ConnectionRefusedError):
            shown = "connection refused"
        raise BrokerUnavailable(
            f"brokers at {addresses} do not respond: {shown}{self._hint()}"
        ) from reason

    def _hint(self) -> str:
        is_plain = self._protocol == "PLAINTEXT"
        return "; a listener with TLS or SASL needs --command-config" if is_plain else ""

    async def channel(self, node: int) -> "SourceChannel":
        """Return the connection to a broker, from the list of the last topics."""
        if node not in self._addresses:
            raise SourceMoved(f"node {node} is not there")
        if node not in self._channels:
            self._channels[node] = await self._open(*self._addresses[node])
        return self._channels[node]

    async def _listed(self) -> Mapping[str, ListedTopic]:
        if self._topics is None:
            found = await (await self._any()).send(
                _METADATA,
                _METADATA_NEWEST,
                "MetadataRequest",
                lambda _: {
                    "topics": None,
                    "allow_auto_topic_creation": False,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                },
            )
            self._addresses = {int(one.node_id): (one.host, int(one.port)) for one in found.brokers}
            self._topics = {str(one.name): _listed_topic(one) for one in found.topics}
        return self._topics

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
        try:
            opened = await self._network.connect(host, port, lambda: None)
        except ssl.SSLCertVerificationError as error:
            raise RequestRefused(
                f"{host}:{port}: its certificate is not trusted ({error.verify_message}): "
                "ssl.truststore.location is for the authority that issued it"
            ) from error
        channel = SourceChannel(opened)
        try:
            async with asyncio.timeout(_RESPONSE_S):
                if self._protocol.startswith("SASL_"):
                    await log_in(opened, await self._login())
            await channel.negotiate()
        except BaseException as error:
            channel.close()
            if isinstance(error, SaslFailure):
                raise RequestRefused(f"{host}:{port}: {error}") from error
            raise
        return channel

    async def _login(self) -> SaslLogin:
        settings = self._settings
        wanted = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
        user, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
        if wanted == PlainLogin.mechanism:
            return PlainLogin(user, password)
        if wanted in SCRAM_MECHANISMS:
            return ScramLogin.by_password(SCRAM_MECHANISMS[wanted], user, password, self._rng)
        if wanted == source_tokens.MECHANISM and self._tokens is not None:
            token = await asyncio.to_thread(self._tokens.token)
            return TokenLogin(token.value, self._tokens.extensions)
        raise SettingsError(
            f"sasl.mechanism {wanted or 'is not set'}: an import logs in by PLAIN, "
            f"{', '.join(SCRAM_MECHANISMS)} or OAUTHBEARER; give it a user of one of them"
        )

    def _context(self) -> ssl.SSLContext | None:
        if not self._protocol.endswith("SSL"):
            return None
        values = _java_names(self._settings)

        def value(name: str) -> str:
            return values.get(name, "")

        context = client_context(load_material(value), value)
        if self._settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def _listed_topic(found: Any) -> ListedTopic:
    topic_id = getattr(found, "topic_id", None)
    return ListedTopic(
        topic=Incarnation(str(found.name), "" if topic_id is None else topic_id.hex),
        leaders={int(one.partition_index): int(one.leader_id) for one in found.partitions},
        is_internal=bool(found.is_internal),
    )


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

    def supports(self, key: int, version: int) -> bool:
        """Return whether the broker has this version of a request."""
        oldest, newest = self._versions.get(key, (0, -1))
        return oldest <= version <= newest

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
