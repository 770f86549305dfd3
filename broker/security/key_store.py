"""Keys and certificates from the places that Kafka's `ssl.*` settings name: PEM files, PEM texts,
PKCS12 files.
"""

import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

Value = Callable[[str], str]
"""Returns the value of a setting such as ssl.keystore.location; empty without one."""

_FILE_MAX = 8 << 20
_JKS = bytes.fromhex("feedfeed")
_PEM, _PKCS12 = "PEM", "PKCS12"
_CONVERT = (
    "convert it: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 "
    "-deststoretype PKCS12"
)
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS13 = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]


class UnreadableKeyMaterial(SettingsError):
    """The system could not read a file, whose content may be right: another try may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMaterial:
    """A private key with its chain, and trusted authorities: PEM, empty if there are none."""

    chain_and_key: bytes
    password: str
    trusted: str

    def __repr__(self) -> str:
        return "KeyMaterial(...)"


def files_of(value: Value) -> tuple[str, ...]:
    """Return the files that the settings name."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return tuple(path for path in map(value, names) if path)


def load_material(value: Value) -> KeyMaterial:
    """Read what the settings name. Raises SettingsError, one line."""
    chain_and_key, password = _key_store(value)
    return KeyMaterial(chain_and_key=chain_and_key, password=password, trusted=_trust_store(value))


def chain_of(material: KeyMaterial) -> "Sequence[Certificate]":
    """Return the certificate of a private key and those that sign it. Raises SettingsError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(material.chain_and_key)
    except ValueError as error:
        raise SettingsError(f"ssl.keystore.location: {error}") from None


def server_context(material: KeyMaterial, value: Value, client_auth: str) -> ssl.SSLContext:
    """Return the context of a listener. `client_auth` says which certificates it takes from
    clients: none, requested or required. Raises SettingsError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not material.chain_and_key:
        raise SettingsError(
            "ssl.keystore.location: a listener with SSL needs a key and its certificate: "
            "`lakehead certs` makes some for tests"
        )
    context.options |= ssl.OP_NO_RENEGOTIATION
    _configure(context, material, value)
    if client_auth != "none":
        if not material.trusted:
            raise SettingsError(
                "ssl.truststore.location: certificates of clients and nodes are checked: name the "
                "authorities that sign them"
            )
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context


def client_context(material: KeyMaterial, value: Value) -> ssl.SSLContext:
    """Return the context of connections to other nodes or to brokers. Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = value("ssl.endpoint.identification.algorithm").lower() == "https"
    _configure(context, material, value)
    if not material.trusted:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def allowed_ciphers(value: Value) -> frozenset[str]:
    """Return the cipher suites of TLS 1.3 that are allowed, by their names; empty: all of them.

    Python has no way to turn one of them off, so it is checked after the handshake.
    """
    wanted = _items(value("ssl.cipher.suites"))
    return frozenset(one for one in wanted if one in _TLS13)


def _configure(context: ssl.SSLContext, material: KeyMaterial, value: Value) -> None:
    protocols = _items(value("ssl.enabled.protocols"))
    for one in protocols:
        if one not in _PROTOCOLS:
            raise SettingsError(
                f"ssl.enabled.protocols: {one!r} is not one of: {', '.join(_PROTOCOLS)}"
            )
    if not protocols:
        raise SettingsError("ssl.enabled.protocols: name at least one of TLSv1.2 and TLSv1.3")
    versions = sorted(_PROTOCOLS[one] for one in protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _choose_ciphers(context, _items(value("ssl.cipher.suites")))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java: any certificate can be trusted
    try:
        if material.trusted:
            context.load_verify_locations(cadata=material.trusted)
        if material.chain_and_key:
            with _in_memory(material.chain_and_key) as path:
                context.load_cert_chain(path, password=lambda: material.password)
    except ssl.SSLError as error:
        raise SettingsError(f"ssl.keystore or ssl.truststore: {_reason(error)}") from None
    except OSError as error:
        raise UnreadableKeyMaterial(f"ssl.keystore: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"ssl.key.password: {error}") from None


def _choose_ciphers(context: ssl.SSLContext, wanted: list[str]) -> None:
    if not wanted:
        return
    known = {_standard_name(one["name"]): one["name"] for one in context.get_ciphers()}
    older = []
    for one in wanted:
        if one in _TLS13:
            continue
        name = known.get(one) or (one if one in known.values() else None)
        if name is None:
            raise SettingsError(f"ssl.cipher.suites: {one!r} is not a cipher suite of this machine")
        older.append(name)
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if len(older) == len(wanted):
        context.maximum_version = ssl.TLSVersion.TLSv1_2


def _standard_name(name: str) -> str:
    """Return the standard name of OpenSSL's ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, dash, rest = name.partition("-AES")
    cipher = "AES"
    if not dash:
        exchange, dash, rest = name.partition("-CHACHA20-POLY1305")
        cipher, rest = "CHACHA20_POLY1305", rest or "-SHA256"
    if not dash:
        return name
    bits = rest.replace("128-", "_128_").replace("256-", "_256_").replace("-", "_")
    if cipher == "AES" and not bits.startswith(("_128_GCM", "_256_GCM", "_128_CCM", "_256_CCM")):
        bits = bits.replace("_128_", "_128_CBC_").replace("_256_", "_256_CBC_")
    return f"TLS_{exchange.replace('-', '_')}_WITH_{cipher}{bits}"


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _key_store(value: Value) -> tuple[bytes, str]:
    key, chain = value("ssl.keystore.key"), value("ssl.keystore.certificate.chain")
    path = value("ssl.keystore.location")
    if key or chain:
        if path:
            raise SettingsError(
                "set ssl.keystore.location, or ssl.keystore.key and "
                "ssl.keystore.certificate.chain, not both"
            )
        if not (key and chain):
            raise SettingsError(
                "ssl.keystore.key and ssl.keystore.certificate.chain belong together"
            )
        return f"{key}\n{chain}\n".encode(), value("ssl.key.password")
    if not path:
        return b"", ""
    data = _read("ssl.keystore.location", path)
    if _kind("ssl.keystore", value, data) == _PEM:
        return data, value("ssl.key.password")
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    found = _pkcs12("ssl.keystore", data, value("ssl.keystore.password"))
    if found.key is None or found.cert is None:
        raise SettingsError(f"ssl.keystore.location: {path} has no key with a certificate")
    certificates = [found.cert, *found.additional_certs]
    return (
        found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + b"".join(one.certificate.public_bytes(Encoding.PEM) for one in certificates),
        "",
    )


def _trust_store(value: Value) -> str:
    text, path = value("ssl.truststore.certificates"), value("ssl.truststore.location")
    if text and path:
        raise SettingsError(
            "set one of ssl.truststore.location and ssl.truststore.certificates, not both"
        )
    if not path:
        return text.encode("ascii", "ignore").decode()
    data = _read("ssl.truststore.location", path)
    if _kind("ssl.truststore", value, data) == _PEM:
        return data.decode("ascii", "ignore")  # of comments: `ssl` takes no other letters
    from cryptography.hazmat.primitives.serialization import Encoding

    found = _pkcs12("ssl.truststore", data, value("ssl.truststore.password"))
    certificates = ([found.cert] if found.cert else []) + list(found.additional_certs)
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in certificates).decode()


def _read(setting: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_MAX + 1)
    except OSError as error:
        # Once one of these is mended the file has another stamp, by which it is read again.
        is_final = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError)
        kind = SettingsError if is_final else UnreadableKeyMaterial
        raise kind(f"{setting}: cannot read {path}: {error.strerror}") from None
    if len(data) > _FILE_MAX:
        raise SettingsError(f"{setting}: {path} is larger than {_FILE_MAX >> 20} MiB")
    return data


def _kind(store: str, value: Value, data: bytes) -> str:
    kind = value(f"{store}.type").upper()
    if kind == "JKS" or data.startswith(_JKS):
        raise SettingsError(f"{store}.type: JKS is Java's own format; {_CONVERT}")
    if kind not in {_PEM, _PKCS12}:
        raise SettingsError(f"{store}.type: {kind!r} is not one of: {_PEM}, {_PKCS12}")
    return kind


def _pkcs12(store: str, data: bytes, password: str) -> "PKCS12KeyAndCertificates":
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        return load_pkcs12(data, password.encode() if password else None)
    except ValueError as error:
        raise SettingsError(
            f"{store}.location: it is not PKCS12, or {store}.password is wrong: {error}"
        ) from None


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Lend the path of a file that is in memory only: OpenSSL by Python reads keys from files."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reason(error: ssl.SSLError) -> str:
    reason = str(error.reason or error).replace("_", " ").lower()
    known = {
        "key values mismatch": "the key is not that of the certificate",
        "no start line": "it is not PEM",
        "bad decrypt": "ssl.key.password is wrong",
        "bad password read": "the key is encrypted, and ssl.key.password is not set",
    }
    return known.get(reason, reason)
