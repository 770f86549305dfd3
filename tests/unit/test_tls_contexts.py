"""The TLS contexts of listeners are of one reading of their files, and of the newest."""

import errno
import os
import ssl
from pathlib import Path

import pytest

from lakehead.broker.network.listeners import Listeners
from lakehead.broker.network.tls_contexts import TlsContexts
from lakehead.broker.security import key_store
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.broker.setting_sources import load
from lakehead.storage.clock import SystemClock

NAME = "SSL"


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentCa:
    return DevelopmentCa(tmp_path / "ca", utc(SystemClock().now_ms()))


def contexts(authority: DevelopmentCa, keystore: Path) -> TlsContexts:
    settings = load(
        {
            "listeners": "SSL://localhost:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.location": str(authority.certificate_path),
        }
    )
    return TlsContexts(Listeners(settings).all.values(), settings)


def shown(context: ssl.SSLContext) -> bytes:
    """Return the certificate that a client of this context gets."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def named(authority: DevelopmentCa, name: str) -> bytes:
    return authority.issue(name, hosts=("localhost",)).read_bytes()


def test_a_key_that_is_replaced_while_it_is_read_is_loaded_as_a_whole(
    authority: DevelopmentCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography import x509

    first, second = named(authority, "first"), named(authority, "second")
    keystore = tmp_path / "node.pem"
    keystore.write_bytes(first)
    read = key_store._read

    def replaced_after(setting: str, path: str) -> bytes:
        data = read(setting, path)
        if path == str(keystore):
            keystore.write_bytes(second)
        return data

    monkeypatch.setattr(key_store, "_read", replaced_after)
    found = contexts(authority, keystore)
    served = x509.load_der_x509_certificate(shown(found.context(NAME)))
    assert served.subject == found.chains()[NAME][0].subject
    found.refresh()  # the change is seen
    served = x509.load_der_x509_certificate(shown(found.context(NAME)))
    assert served == x509.load_pem_x509_certificates(second)[0]


def test_a_file_that_could_not_be_used_is_tried_again_when_only_its_content_changes(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    """The copy has the time and the size of the one before, as with `cp -p` and `rsync -t`."""
    from cryptography import x509

    keystore = tmp_path / "node.pem"
    keystore.write_bytes(named(authority, "first"))
    found = contexts(authority, keystore)
    second = named(authority, "second")
    keystore.write_bytes(b"#" * len(second))
    at = keystore.stat().st_mtime_ns
    found.refresh()
    assert found.refused_total == 1
    keystore.write_bytes(second)
    os.utime(keystore, ns=(at, at))
    found.refresh()
    served = x509.load_der_x509_certificate(shown(found.context(NAME)))
    assert served == x509.load_pem_x509_certificates(second)[0]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_file_is_tried_again_until_the_system_lets_it_be_read(
    authority: DevelopmentCa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """A node without free descriptors, for example, would keep its old certificate to its end."""
    from cryptography import x509

    keystore = tmp_path / "node.pem"
    keystore.write_bytes(named(authority, "first"))
    found = contexts(authority, keystore)
    second = named(authority, "second")
    keystore.write_bytes(second)

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "memfd_create", refused) if is_read else (Path, "open", refused)))
        found.refresh()
        found.refresh()
        assert found.refused_total == 1
    found.refresh()
    served = x509.load_der_x509_certificate(shown(found.context(NAME)))
    assert served == x509.load_pem_x509_certificates(second)[0]
