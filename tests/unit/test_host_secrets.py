"""Copies of a host's secrets: what nodes could not use is refused, and the last good ones stay."""

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lakehead.broker.security.development_certs import DevelopmentCa
from lakehead.broker.security.host_secrets import HostSecrets, check_certificate
from lakehead.broker.setting_sources import load
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError

ADDRESS = "10.42.0.10"
NOW = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
Fields = dict[str, str]


class Vault(dict[str, str]):
    """Secrets by name; one that is not there cannot be read."""

    def read(self, name: str) -> str:
        if name not in self:
            raise SettingsError("AWS refused it: ResourceNotFoundException")
        return self[name]

    def put_tls(self, fields: Fields) -> None:
        self["lake/tls"] = json.dumps(fields)


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentCa:
    return DevelopmentCa(tmp_path / "ca", NOW)


@pytest.fixture
def fields(authority: DevelopmentCa) -> Fields:
    return authority.secret_of(authority.issue("node", hosts=[ADDRESS, "*.lake.example"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def contents(folder: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in folder.iterdir()}


def test_a_host_without_a_value_waits_and_says_for_which_secret(folder: Path) -> None:
    copies = HostSecrets(folder, "lake", Vault().read)
    with capture_logs() as events:
        assert not copies.update_tls(ADDRESS)
        assert not copies.update_admin("admin")
    assert [(one["event"], one["secret"]) for one in events] == [
        ("secret_awaited", "lake/tls"),
        ("secret_awaited", "lake/first-admin"),
    ]
    assert all("put-secret-value --secret-id lake/" in one["command"] for one in events)
    assert contents(folder) == {}


def test_copies_are_what_nodes_load_and_others_cannot_read(folder: Path, fields: Fields) -> None:
    vault = Vault()
    vault.put_tls(fields)
    copies = HostSecrets(folder, "lake", vault.read)
    assert copies.update_tls(ADDRESS)
    assert contents(folder) == {
        "ca.pem": f"{fields['ca']}\n",
        "host.pem": f"{fields['key']}\n{fields['certificate']}\n",
        "nodes.properties": (
            f"security.protocol=SSL\nssl.keystore.location={folder}/host.pem\n"
            f"ssl.truststore.location={folder}/ca.pem\n"
        ),
    }
    modes = {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}
    assert modes == {0o640}
    before = (folder / "host.pem").stat()
    assert copies.update_tls(ADDRESS)
    after = (folder / "host.pem").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_rotated_certificate_replaces_the_copy(
    folder: Path, fields: Fields, authority: DevelopmentCa
) -> None:
    vault = Vault()
    vault.put_tls(fields)
    copies = HostSecrets(folder, "lake", vault.read)
    assert copies.update_tls(ADDRESS)
    later = authority.secret_of(authority.issue("node", hosts=[ADDRESS]))
    assert later["key"] != fields["key"]
    vault.put_tls(later)
    assert copies.update_tls(ADDRESS)
    assert later["key"] in contents(folder)["host.pem"]
    vault.clear()
    assert copies.update_tls(ADDRESS), "nodes start while Secrets Manager does not respond"
    assert later["key"] in contents(folder)["host.pem"]


def stranger(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    other = DevelopmentCa(folder / "other", NOW)
    return fields | {"ca": other.secret_of(other.issue("node", hosts=[ADDRESS]))["ca"]}


def expired(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    begins = NOW - timedelta(days=3)
    return authority.secret_of(authority.issue("node", hosts=[ADDRESS], begins=begins, days=2))


def of_a_client(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    return authority.secret_of(authority.issue("node", hosts=[ADDRESS], is_client_only=True))


def for_another_address(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    return authority.secret_of(authority.issue("node", hosts=["10.42.0.11"]))


def with_another_key(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    return fields | {"key": authority.secret_of(authority.issue("node", hosts=[ADDRESS]))["key"]}


def without_a_key(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    return {name: text for name, text in fields.items() if name != "key"}


def torn(fields: Fields, authority: DevelopmentCa, folder: Path) -> Fields:
    return fields | {"certificate": fields["certificate"][:100]}


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (stranger, "self-signed certificate in certificate chain"),
        (expired, "certificate has expired"),
        (of_a_client, "purpose"),
        (for_another_address, "10.42.0.10"),
        (with_another_key, "the key is not that of the certificate"),
        (without_a_key, "it has no text key"),
        (torn, "PEM"),
    ],
)
def test_a_value_that_nodes_could_not_use_changes_nothing(
    folder: Path,
    fields: Fields,
    authority: DevelopmentCa,
    damaged: Callable[[Fields, DevelopmentCa, Path], Fields],
    reason: str,
) -> None:
    vault = Vault()
    vault.put_tls(damaged(fields, authority, folder.parent))
    copies = HostSecrets(folder, "lake", vault.read)
    with capture_logs() as events:
        assert not copies.update_tls(ADDRESS)
    assert contents(folder) == {}
    (event,) = events
    assert event["event"] == "secret_awaited"
    assert reason.lower() in event["reason"].lower()
    assert "PRIVATE" not in str(event)

    good = vault["lake/tls"]
    vault.put_tls(fields)
    assert copies.update_tls(ADDRESS)
    before = contents(folder)
    vault["lake/tls"] = good
    with capture_logs() as events:
        assert copies.update_tls(ADDRESS)
    assert [one["event"] for one in events] == ["secret_refused"]
    assert contents(folder) == before


@pytest.mark.parametrize("text", ["", "secret words", "[]", '"text"', '{"password": 7}', "{}"])
def test_a_secret_that_is_no_object_is_not_shown(folder: Path, text: str) -> None:
    vault = Vault({"lake/tls": text, "lake/first-admin": text})
    copies = HostSecrets(folder, "lake", vault.read)
    with capture_logs() as events:
        assert not copies.update_tls(ADDRESS)
        assert not copies.update_admin("admin")
    assert "secret words" not in str(events)
    assert contents(folder) == {}


def test_a_certificate_may_have_a_wildcard_for_names_of_nodes(fields: Fields) -> None:
    check_certificate(fields, "b0.lake.example")
    with pytest.raises(SettingsError, match="nodes would refuse the certificate"):
        check_certificate(fields, "b0.rack.lake.example")


@pytest.mark.parametrize("password", ["correct horse", "a$b\"c'd\\e #f", "${env:HOME}", " spaces "])
def test_the_first_admin_is_a_setting_of_nodes_until_the_cluster_exists(
    folder: Path, password: str
) -> None:
    vault = Vault({"lake/first-admin": json.dumps({"password": password})})
    copies = HostSecrets(folder, "lake", vault.read)
    assert copies.update_admin("root@lake")
    settings = load({}, {}, str(folder / "first-admin.toml"))
    assert settings.bootstrap_admin == "root@lake"
    assert str(settings.bootstrap_admin_password) == password
    assert password not in (folder / "first-admin.toml").read_text()
    copies.remove_admin()
    copies.remove_admin()
    assert contents(folder) == {}
