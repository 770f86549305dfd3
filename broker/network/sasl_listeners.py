"""The mechanisms of listeners with SASL, by the settings of each."""

import random
from collections.abc import Iterable

import structlog

from lakehead.broker.network.authentication import SaslListener, TokenValidator
from lakehead.broker.network.listeners import Listener
from lakehead.broker.security.https_client import HttpsClient
from lakehead.broker.security.sasl import oauthbearer, plain
from lakehead.broker.security.sasl.credentials import ScramCredentials
from lakehead.broker.security.sasl.listener_settings import (
    SaslListenerSettings,
    TokenSettings,
    sasl_listener_settings,
)
from lakehead.broker.security.sasl.oauthbearer import OAuthBearerServer
from lakehead.broker.security.sasl.plain import PlainServer
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS, ScramServer, secure_text
from lakehead.broker.security.sasl.session import MakeMechanism
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock

_log = structlog.get_logger("broker.security")


def sasl_settings(
    settings: Settings, listeners: Iterable[Listener]
) -> dict[str, SaslListenerSettings]:
    """Return the settings of the listeners with SASL, by name. Raises SettingsError."""
    return {
        one.name: sasl_listener_settings(settings, one.name, one.overrides)
        for one in listeners
        if one.protocol.is_sasl
    }


def sasl_listener(
    listener: Listener,
    own: SaslListenerSettings,
    credentials: ScramCredentials,
    clock: Clock,
    rng: random.Random,
) -> SaslListener:
    """Return the mechanisms of a listener. That between nodes takes nodes by any SCRAM mechanism:
    nodes with different settings reach each other, and commands, which know no setting, reach them.
    """
    mechanisms: dict[str, MakeMechanism] = {}
    for name, mechanism in SCRAM_MECHANISMS.items():
        has_nodes = listener.is_inter_broker
        if name in own.mechanisms or has_nodes:
            find = credentials.finder(
                mechanism, has_nodes=has_nodes, has_users=name in own.mechanisms
            )
            mechanisms[name] = lambda m=mechanism, f=find: ScramServer(  # type: ignore[misc]
                m, f, secure_text(rng)
            )
    if own.users is not None:
        users = own.users
        mechanisms[plain.MECHANISM] = lambda: PlainServer(users)
        if not listener.protocol.is_tls:
            _log.warning("passwords_in_clear", listener=listener.name, mechanism=plain.MECHANISM)
    validators: list[TokenValidator] = []
    if own.tokens is not None:
        mechanisms[oauthbearer.MECHANISM] = OAuthBearerServer
        validators = _validators(own.tokens, clock)
        if own.tokens.unsecured is not None:
            _log.warning("unsecured_tokens", listener=listener.name)
    return SaslListener(
        enabled=own.mechanisms,
        mechanisms=mechanisms,
        max_reauth_ms=own.max_reauth_ms,
        max_receive_size=own.max_receive_size,
        validators=validators,
    )


def _validators(tokens: TokenSettings, clock: Clock) -> list[TokenValidator]:
    # These load joserfc, a tenth of a second that other nodes need not wait.
    from lakehead.broker.security.sasl.jwks import Jwks
    from lakehead.broker.security.token_validators import (
        JwksKeys,
        SignedTokens,
        StsTokens,
        UnsecuredTokens,
    )

    client = HttpsClient(clock, connect_s=tokens.connect_s, read_s=tokens.read_s)
    found: list[TokenValidator] = []
    if tokens.sts is not None:
        found.append(StsTokens(tokens.sts, tokens.sts_endpoint, client, clock))
    if tokens.signed is not None:
        signed = tokens.signed
        jwks = Jwks(
            refresh_s=signed.refresh_s,
            backoff_s=signed.backoff_s,
            backoff_max_s=signed.backoff_max_s,
            now=clock.monotonic(),
        )
        found.append(SignedTokens(signed.rules, JwksKeys(signed.url, jwks, client, clock), clock))
    if tokens.unsecured is not None:
        found.append(UnsecuredTokens(tokens.unsecured, clock))
    return found
