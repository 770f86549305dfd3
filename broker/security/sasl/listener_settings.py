"""The SASL settings of one listener, by Kafka's names.

A setting of a listener goes before that of the node: `listener.name.<name>.<mechanism>.<setting>`,
then `listener.name.<name>.<setting>`, then `<setting>`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lakehead.broker.configs.definition import split_list
from lakehead.broker.security.sasl import oauthbearer, plain
from lakehead.broker.security.sasl.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    JaasError,
    LoginModule,
    parse_jaas,
)
from lakehead.broker.security.sasl.plain import PlainUsers
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS
from lakehead.broker.security.sasl.sts import StsRules
from lakehead.broker.security.sasl.token_rules import TokenRules, UnsecuredRules
from lakehead.broker.setting_sources import SETTINGS
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

MECHANISMS = (plain.MECHANISM, *SCRAM_MECHANISMS, oauthbearer.MECHANISM)
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_SECURED = frozenset(
    {
        "",
        f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
        f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
    }
)
_UNSECURED = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_USER = "user_"
_SETTINGS = {setting.name: setting for setting in SETTINGS}

Value = Callable[[str, str], str]
"""Returns the text of (mechanism, setting)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTokenSettings:
    """Tokens by keys of an issuer: where the keys are, and what tokens must say."""

    url: str
    refresh_s: float
    backoff_s: float
    backoff_max_s: float
    rules: TokenRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The kinds of tokens that OAUTHBEARER accepts; None: not that kind."""

    signed: SignedTokenSettings | None = None
    unsecured: UnsecuredRules | None = None
    sts: StsRules | None = None
    sts_endpoint: str = ""
    connect_s: float = 10.0
    read_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslListenerSettings:
    """Mechanisms of a listener, in the order of the settings, and what they need."""

    mechanisms: tuple[str, ...]
    users: PlainUsers | None = None
    tokens: TokenSettings | None = None
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    max_receive_size: int = 524_288


def sasl_listener_settings(
    settings: Settings, name: str, overrides: Mapping[str, str]
) -> SaslListenerSettings:
    """Return the settings of the listener `name`; `overrides` are its own, without the prefix
    `listener.name.<name>.`. Raises SettingsError.
    """

    def value(mechanism: str, setting: str) -> str:
        for key in (f"{mechanism.lower()}.{setting}", setting):
            if key in overrides:
                return overrides[key]
        return str(getattr(settings, _SETTINGS[setting].field))

    prefix = f"listener.name.{name.lower()}"
    mechanisms = tuple(dict.fromkeys(split_list(value("", "sasl.enabled.mechanisms"))))
    if not mechanisms:
        raise SettingsError(
            f"{prefix}: set sasl.enabled.mechanisms, to one or more of {', '.join(MECHANISMS)}"
        )
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise SettingsError(
                f"sasl.enabled.mechanisms: {mechanism!r} is not one of {', '.join(MECHANISMS)}"
            )
    has_tokens = oauthbearer.MECHANISM in mechanisms
    return SaslListenerSettings(
        mechanisms=mechanisms,
        users=_users(prefix, value) if plain.MECHANISM in mechanisms else None,
        tokens=_tokens(prefix, value) if has_tokens else None,
        max_reauth_ms={
            mechanism: _number(value, mechanism, "connections.max.reauth.ms")
            for mechanism in mechanisms
        },
        max_receive_size=_number(value, "", "sasl.server.max.receive.size"),
    )


def _users(prefix: str, value: Value) -> PlainUsers:
    setting = f"{prefix}.plain.sasl.jaas.config"
    module = _module(setting, value(plain.MECHANISM, "sasl.jaas.config"))
    if module is None or module.name != PLAIN_MODULE:
        raise SettingsError(f'{setting}: PLAIN needs {PLAIN_MODULE} required user_NAME="PASSWORD";')
    users = {
        option.removeprefix(_USER): password
        for option, password in module.options.items()
        if option.startswith(_USER)
    }
    return PlainUsers(users)


def _tokens(prefix: str, value: Value) -> TokenSettings:
    def of(setting: str) -> str:
        return value(oauthbearer.MECHANISM, setting)

    handler = of("sasl.server.callback.handler.class")
    if handler not in _SECURED and handler != _UNSECURED:
        raise SettingsError(
            f"{prefix}.oauthbearer.sasl.server.callback.handler.class: this broker loads no "
            "classes; it has Kafka's OAuthBearerValidatorCallbackHandler and "
            "OAuthBearerUnsecuredValidatorCallbackHandler"
        )
    url = of("sasl.oauthbearer.jwks.endpoint.url")
    is_unsecured = handler == _UNSECURED
    found = TokenSettings(
        signed=_signed(url, value) if url and not is_unsecured else None,
        unsecured=_unsecured(prefix, of("sasl.jaas.config")) if is_unsecured else None,
        sts=_sts(value),
        sts_endpoint=_checked_url("sts.endpoint", of("sts.endpoint")),
        connect_s=_number(value, oauthbearer.MECHANISM, "sasl.login.connect.timeout.ms") / 1000,
        read_s=_number(value, oauthbearer.MECHANISM, "sasl.login.read.timeout.ms") / 1000,
    )
    if found.signed is None and found.unsecured is None and found.sts is None:
        raise SettingsError(
            f"{prefix}: OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, or sts.cluster"
        )
    return found


def _signed(url: str, value: Value) -> SignedTokenSettings:
    def number(setting: str) -> int:
        return _number(value, oauthbearer.MECHANISM, f"sasl.oauthbearer.{setting}")

    def text(setting: str) -> str:
        return value(oauthbearer.MECHANISM, f"sasl.oauthbearer.{setting}")

    return SignedTokenSettings(
        url=_checked_url("sasl.oauthbearer.jwks.endpoint.url", url),
        refresh_s=number("jwks.endpoint.refresh.ms") / 1000,
        backoff_s=number("jwks.endpoint.retry.backoff.ms") / 1000,
        backoff_max_s=number("jwks.endpoint.retry.backoff.max.ms") / 1000,
        rules=TokenRules(
            issuer=text("expected.issuer"),
            audiences=frozenset(split_list(text("expected.audience"))),
            clock_skew_s=number("clock.skew.seconds"),
            scope_claim=text("scope.claim.name"),
            subject_claim=text("sub.claim.name"),
        ),
    )


def _unsecured(prefix: str, text: str) -> UnsecuredRules:
    setting = f"{prefix}.oauthbearer.sasl.jaas.config"
    module = _module(setting, text)
    if module is not None and module.name != OAUTHBEARER_MODULE:
        raise SettingsError(f"{setting}: OAUTHBEARER has {OAUTHBEARER_MODULE}")
    options = {} if module is None else module.options
    skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
    if not (skew.isascii() and skew.isdecimal()):
        raise SettingsError(f"{setting}: unsecuredValidatorAllowableClockSkewMs is not a number")
    return UnsecuredRules(
        subject_claim=options.get("unsecuredValidatorPrincipalClaimName", "sub"),
        scope_claim=options.get("unsecuredValidatorScopeClaimName", "scope"),
        required_scope=frozenset(options.get("unsecuredValidatorRequiredScope", "").split()),
        clock_skew_ms=int(skew[:12]),
    )


def _sts(value: Value) -> StsRules | None:
    def text(setting: str) -> str:
        return value(oauthbearer.MECHANISM, setting)

    cluster = text("sts.cluster")
    if not cluster:
        return None
    accounts, regions = split_list(text("sts.accounts")), split_list(text("sts.regions"))
    if not accounts or not all(len(one) == 12 and one.isdecimal() for one in accounts):
        raise SettingsError("sts.accounts: name the AWS accounts, 12 digits each, that may log in")
    if not regions:
        raise SettingsError("sts.regions: name the regions of AWS whose STS checks tokens")
    if not (cluster.isascii() and cluster.isprintable() and cluster == cluster.strip()):
        raise SettingsError("sts.cluster: it is a header of requests, so in ASCII and on one line")
    return StsRules(cluster=cluster, accounts=frozenset(accounts), regions=frozenset(regions))


def _module(setting: str, text: str) -> LoginModule | None:
    try:
        return parse_jaas(text) if text.strip() else None
    except JaasError as error:
        raise SettingsError(f"{setting}: {error}") from None


def _number(value: Value, mechanism: str, setting: str) -> int:
    number = _SETTINGS[setting].parse(value(mechanism, setting))
    assert isinstance(number, int)
    return number


def _checked_url(setting: str, url: str) -> str:
    try:
        place = urlsplit(url)
        is_place = place.scheme in {"http", "https"} and place.hostname and place.port != 0
    except ValueError:
        is_place = False
    if url and not is_place:
        raise SettingsError(f"{setting}: {url!r} is not a URL of http or https")
    return url
