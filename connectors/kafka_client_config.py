"""A file of Kafka client settings, for clients that are made of librdkafka.

It may be one that a Java client has (`client.properties`): the names by which Java's clients and
librdkafka differ, all of them about security, are translated. Values may be references
(`lakehead.storage.config_providers`).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lakehead.storage.config_providers import ConfigProviders
from lakehead.storage.errors import SettingsError

_RENAMED = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
_DROPPED = frozenset(
    {
        *("ssl.truststore.type", "ssl.keystore.type", "ssl.truststore.password"),
        *("sasl.login.callback.handler.class", "ssl.protocol", "ssl.enabled.protocols"),
    }
)
"""Names of Java that say how a file is read, or that librdkafka chooses by itself."""
_MODULES = ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule")
_JAAS = re.compile(r"\s*([\w.]+)\s+required\b(.*);\s*", re.DOTALL)
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")


def read_client_config(file: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return librdkafka's settings of a file of lines `name=value`. Raises SettingsError and
    OSError.
    """
    providers = ConfigProviders(environment)
    found: dict[str, str] = {}
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not text in UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{file}, line {number}: a setting is name=value")
        resolved = providers.resolved(f"{file}, line {number}", value.strip())
        found[name.strip()] = str(resolved)
    return translated(found, str(file))


def translated(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Return settings with librdkafka's names for those of Java's clients. Raises SettingsError for
    what librdkafka has not.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        if name == "sasl.jaas.config":
            found |= _of_jaas(value, where)
        elif name == "ssl.truststore.location":
            _check_type(given, "ssl.truststore", ("PEM",), where)
            found["ssl.ca.location"] = value
        elif name == "ssl.keystore.location":
            kind = _check_type(given, "ssl.keystore", ("PEM", "PKCS12"), where)
            names = ("ssl.certificate.location", "ssl.key.location")
            found |= dict.fromkeys(names if kind == "PEM" else (name,), value)
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = value.lower() or "none"
        elif name not in _DROPPED:
            found[_RENAMED.get(name, name)] = value
    return found


def _check_type(given: Mapping[str, str], name: str, known: tuple[str, ...], where: str) -> str:
    kind = given.get(f"{name}.type", "").upper()
    if not kind:
        path = given[f"{name}.location"].lower()
        kind = "JKS" if path.endswith(".jks") else "PKCS12" if path.endswith(".p12") else "PEM"
    if kind not in known:
        raise SettingsError(
            f"{where}: {name}.type {kind} is not one of {', '.join(known)}: write the certificates "
            "to a PEM file (keytool -exportcert -rfc, openssl pkcs12)"
        )
    return kind


def _of_jaas(value: str, where: str) -> dict[str, str]:
    """Return the settings in place of a line of JAAS; nothing of it stands in an error."""
    found = _JAAS.fullmatch(value)
    module = found[1].rpartition(".")[2] if found else ""
    if found is None or module not in _MODULES:
        raise SettingsError(
            f"{where}: sasl.jaas.config is not one of {', '.join(_MODULES)}, with required, "
            "options and a semicolon"
        )
    options = {
        option[1]: re.sub(r"\\(.)", r"\1", option[2] or option[3] or option[4] or "")
        for option in _OPTION.finditer(found[2])
    }
    if module == "OAuthBearerLoginModule":
        names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
        return {
            "sasl.oauthbearer.method": "oidc",
            **{f"sasl.oauthbearer.{to}": options[of] for of, to in names.items() if of in options},
        }
    if not {"username", "password"} <= set(options):
        raise SettingsError(f"{where}: sasl.jaas.config has no username and password")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}
