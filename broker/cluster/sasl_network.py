"""Channels to other nodes over a listener with SASL: each is authenticated when it is opened.

A node authenticates by SCRAM with a password that follows from the secret of the cluster, so it
needs no user and no setting, and the other node proves that it knows the secret, too. Each request
between nodes also has its proof (`lakehead.broker.protocol.node_proof`).
"""

import random
from collections.abc import Callable
from functools import partial

from lakehead.broker.cluster.inter_broker_client import PeerChannel, PeerNetwork
from lakehead.broker.cluster.sasl_login import ScramLogin, log_in
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.security.sasl.credentials import node_salted_password, node_user
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS


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
        salted = partial(node_salted_password, secret, mechanism.name)
        await log_in(channel, ScramLogin(mechanism, node_user(self._node_id), salted, self._rng))
