"""The certificates of a node's listeners: whether they load, and when they end."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from cryptography import x509

from lakehead.broker.diagnosis.finding import Finding, failed, ok, warning
from lakehead.broker.network.listeners import Listener
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError

_SOON = timedelta(days=30)
_RENEW = "put a new one in its place: nodes load it by themselves"


def judge_certificates(
    listeners: Collection[Listener], settings: Settings, now_ms: int
) -> list[Finding]:
    """Judge the certificates of listeners with TLS, as a start would load them."""
    try:
        chains = TlsContexts(listeners, settings).chains()
    except SettingsError as error:
        return [failed("certificates", str(error), "lakehead settings list ssl has the settings")]
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return [judge_chain(f"certificate {name}", chain, now) for name, chain in chains.items()]


def judge_chain(check: str, chain: Collection[x509.Certificate], now: datetime) -> Finding:
    """Judge a certificate and those that sign it: the first that ends counts."""
    begins = max(one.not_valid_before_utc for one in chain)
    ends = min(one.not_valid_after_utc for one in chain)
    left = ends - now
    if begins > now:
        found = f"valid from {begins:%Y-%m-%d %H:%M} UTC on"
        return failed(check, found, "compare this machine's clock with that of the authority")
    if left <= timedelta():
        return failed(check, f"ended on {ends:%Y-%m-%d %H:%M} UTC", _RENEW)
    found = f"ends on {ends:%Y-%m-%d}, in {left.days} days"
    return warning(check, found, _RENEW) if left < _SOON else ok(check, found)
