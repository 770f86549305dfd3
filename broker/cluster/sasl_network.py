"""Channels to other nodes over a listener with SASL: each is authenticated when it is opened.

A node authenticates by SCRAM with a password that follows from the secret of the cluster, so it
needs no user and no setting, and the other node proves that it knows the secret, too. Each request
between nodes also has its proof (`lakehead.broker.protocol.node_proof`).
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.inter_broker_client import PeerChannel, PeerNetwork
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.security.sasl.credentials import node_salted_password, node_user
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS, ScramClient, secure_text

_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 2)
_ELEMENTS_MAX = 100


class SaslNetwork:
    """A `PeerNetwork` over `inner`, for the node `node_id`."""

    def __init__(
        self, inner: PeerNetwork, node_id: int, mechanism: str, rng: random.Random
    ) -> None:
        self._inner = inner
        self._node_id = node_id
        self._mechanism = SCRAM_MECHANISMS[mechanism.upper()]
        self._rng = rng
        self.secret: Callable[[], str] = str
        """Returns the secret of the cluster, empty until the metadata are read."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        """See `PeerNetwork.connect`."""
        channel = await self._inner.connect(host, port, on_closed)
        try:
            await self._authenticate(channel)
        except BaseException as error:
            channel.close()
            if isinstance(error, SaslFailure | MalformedFrame):
                raise ConnectionAbortedError(f"{host}:{port}: {error}") from error
            raise
        return channel

    async def probe(self, host: str, port: int) -> None:
        """See `PeerNetwork.probe`."""
        await self._inner.probe(host, port)

    async def _authenticate(self, channel: PeerChannel) -> None:
        secret, mechanism = self.secret(), self._mechanism
        if not secret:
            raise SaslFailure("the cluster has no secret of nodes yet")
        client = ScramClient(
            mechanism,
            node_user(self._node_id),
            partial(node_salted_password, secret, mechanism.name),
            secure_text(self._rng),
        )
        shaken = await _send(channel, _HANDSHAKE, "SaslHandshakeRequest", mechanism=mechanism.name)
        if shaken.error_code is not ErrorCode.none:
            raise SaslFailure(f"the other node has no {mechanism.name} for nodes")
        challenge = await _send_token(channel, client.first())
        client.check(await _send_token(channel, client.final(challenge)))


async def _send_token(channel: PeerChannel, message: bytes) -> bytes:
    response = await _send(channel, _AUTHENTICATE, "SaslAuthenticateRequest", auth_bytes=message)
    if response.error_code is not ErrorCode.none:
        raise SaslFailure("the other node has another secret of nodes")
    return bytes(response.auth_bytes)


async def _send(channel: PeerChannel, api: tuple[int, int], name: str, **fields: Any) -> Any:
    message = schema(*api)
    request = entity(message.request_module, name, **fields)
    response = await channel.send(encode_request(*api, 0, request))
    start = 5 if message.flexible_response else 4
    return decode(message.response_class, response, start, _ELEMENTS_MAX)
