"""Certificates for development and tests: an authority, and keys for nodes and clients that it
signs. An authority of a company, or ACM PCA, makes those of a production cluster.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lakehead.broker.security.private_file import write_private_file
from lakehead.storage.errors import SettingsError

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_BEFORE = timedelta(minutes=5)
"""Certificates are valid from that long ago: clocks of machines differ."""


class DevelopmentCa:
    """The authority in a folder; made if it is not there. `now` is the time in UTC. Raises
    SettingsError.
    """

    def __init__(self, folder: Path, now: datetime, *, days: int = 365) -> None:
        self.folder = folder
        self._now = now
        self._days = days
        self.certificate_path: Path = folder / CA_CERTIFICATE
        self._key: ec.EllipticCurvePrivateKey
        self._certificate: x509.Certificate
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open()
        except OSError as error:
            raise SettingsError(f"cannot write {folder}: {error.strerror}") from None

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = (),
        is_client_only: bool = False,
        begins: datetime | None = None,
        days: int | None = None,
    ) -> Path:
        """Write the file NAME.pem with a new key, its certificate and the authority's; return its
        path. `hosts` are names and addresses by which a node is reached.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if not is_client_only:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        begins = begins or self._now - _BEFORE
        lifetime = timedelta(days=self._days if days is None else days)
        builder = (
            self._builder(name, key.public_key(), begins, begins + lifetime)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self.folder / f"{name}.pem"
        write_private_file(
            path,
            _pem(key)
            + certificate.public_bytes(Encoding.PEM)
            + self._certificate.public_bytes(Encoding.PEM),
        )
        return path

    def secret_of(self, issued: Path) -> dict[str, str]:
        """Return what `issue` wrote to a file as the fields of a secret: see
        `lakehead.broker.security.host_secrets`.
        """
        key, begin, certificates = issued.read_text().partition(_CERTIFICATE)
        trusted = self.certificate_path.read_text()
        return {"ca": trusted, "certificate": f"{begin}{certificates}", "key": key}

    def _open(self) -> None:
        key_path = self.folder / CA_KEY
        if key_path.exists() or self.certificate_path.exists():
            try:
                key = load_pem_private_key(key_path.read_bytes(), None)
                self._certificate = x509.load_pem_x509_certificate(
                    self.certificate_path.read_bytes()
                )
            except ValueError as error:
                raise SettingsError(f"{self.folder} has no authority: {error}") from None
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise SettingsError(f"{key_path} is not a key that this command made")
            self._key = key
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        begins = self._now - _BEFORE
        self._certificate = (
            self._builder(
                "Lakehead development CA",
                self._key.public_key(),
                begins,
                begins + timedelta(days=10 * self._days),
            )
            .issuer_name(_name("Lakehead development CA"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_CA_USAGE, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        write_private_file(key_path, _pem(self._key))
        write_private_file(
            self.certificate_path, self._certificate.public_bytes(Encoding.PEM), mode=0o644
        )

    @staticmethod
    def _builder(
        name: str, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


_CA_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def utc(milliseconds: int) -> datetime:
    """Return a time in milliseconds since 1970 as certificates have it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
