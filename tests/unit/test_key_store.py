"""Files of keys and certificates: what is in them besides, and what is wrong with them."""

import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.broker.security.key_store import Value, load_material, server_context
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError

FLIPS = 150


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentCa:
    made = DevelopmentCa(tmp_path / "ca", utc(SystemClock().now_ms()))
    made.issue("node", hosts=("localhost",))
    return made


def values(authority: DevelopmentCa, **more: str) -> Callable[[str], str]:
    given = {
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return lambda name: given.get(name, "")


def served(value: Value, client_auth: str) -> ssl.SSLContext:
    return server_context(load_material(value), value, client_auth)


def test_comments_of_trusted_certificates_may_be_in_any_language(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    """The bundles of many authorities have their names in comments."""
    text = "# Autorité de certification\n" + authority.certificate_path.read_text()
    path = tmp_path / "trusted.pem"
    path.write_text(text, encoding="utf-8")
    for more in ({"ssl_truststore_location": str(path)}, {"ssl_truststore_certificates": text}):
        context = served(values(authority, **more), "required")
        assert len(context.get_ca_certs()) == 1


def test_damaged_files_are_an_error_of_the_settings(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    """Files are read again while the node runs, perhaps half written."""
    rng, path = random.Random(1), tmp_path / "damaged.pem"
    for number in range(FLIPS):
        is_trusted = number % 2 == 0
        source = authority.certificate_path if is_trusted else authority.folder / "node.pem"
        data = bytearray(source.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data[: rng.randrange(len(data))] if number % 5 == 0 else data)
        store = "truststore" if is_trusted else "keystore"
        with suppress(SettingsError):
            served(values(authority, **{f"ssl_{store}_location": str(path)}), "requested")
