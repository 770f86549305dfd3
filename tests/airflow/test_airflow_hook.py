"""What a connection says, how it is filled in, and what is told when it is wrong."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakehead.connectors.airflow.provider_info import CONNECTION_FIELDS, get_provider_info
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.errors import KeyUnavailable
from lakehead.storage.object_store import open_store
from lakehead.storage.object_store.encrypted import encrypted
from tests.support.airflow_runs import connect, with_supervisor
from tests.support.broker_process import BrokerProcess
from tests.support.lake_cluster import LakeCluster
from tests.support.registry_process import RegistryProcess

pytestmark = [
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),  # of a library of Airflow's
]


def hook() -> Any:
    from lakehead.connectors.airflow.hooks import LakeheadHook

    return LakeheadHook()


def failure() -> type[Exception]:
    from airflow.sdk.exceptions import AirflowFailException

    return AirflowFailException


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = f"file:{tmp_path}"
    LakeCluster(path).create_topic("orders")
    connect(monkeypatch, path)
    return path


def test_the_cluster_of_a_connection(cluster: str) -> None:
    assert hook().path == cluster
    assert hook().bootstrap_servers == hook().registry_url == ""
    assert set(hook().state().topics) == {"orders"}
    is_well, words = hook().test_connection()
    assert is_well
    assert "cluster test-cluster with 1 topics" in words


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({}, "extra has no path"),
        ({"path": "/nowhere/at/all"}, "no cluster in"),
        ({"path": "ftp://host"}, "unknown object store"),
        ({"path": "s3:///"}, "names no bucket"),
        ({"path": "s3://bucket?regoin=x"}, "unknown option 'regoin'"),
        ({"path": "/x", "storage": "{"}, "storage is not JSON"),
        ({"path": "/x", "storage": [1]}, "storage is not a JSON object"),
        ({"path": "/x", "storage": {"region": "eu"}}, "storage has 'region'"),
    ],
)
def test_what_is_wrong_is_one_line(
    connection: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKEHEAD_DEFAULT",
        json.dumps({"conn_type": "lakehead", "extra": connection}),
    )
    is_well, told = hook().test_connection()
    assert not is_well
    assert words in told
    assert "\n" not in told


def test_a_connection_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", raising=False)
    with pytest.raises(failure(), match="no connection lakehead_default: add one of type lakehead"):
        _ = hook().path


@pytest.mark.parametrize("kind", ["API_SERVER_ERROR", "GENERIC_ERROR", "CONNECTION_NOT_FOUND"])
def test_a_connection_that_does_not_come_at_this_moment_is_worth_a_retry(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Airflow's SDK says of every failure of its API server that there is no such connection."""
    from lakehead.connectors.airflow.hooks import ConnectionUnavailable

    monkeypatch.delenv("AIRFLOW_CONN_LAKEHEAD_DEFAULT", raising=False)
    with_supervisor(monkeypatch, kind)
    if kind == "CONNECTION_NOT_FOUND":
        with pytest.raises(failure(), match="add one of type lakehead"):
            _ = hook().path
        return
    with pytest.raises(ConnectionUnavailable, match="a later try may succeed") as met:
        _ = hook().path
    assert not isinstance(met.value, failure())
    is_well, words = hook().test_connection()
    assert not is_well
    assert "at this moment" in words


def test_brokers_that_do_not_answer(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehead.connectors.airflow.hooks._TIMEOUT_S", 0.2)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        connect(monkeypatch, cluster, host="127.0.0.1", port=taken.getsockname()[1])
        is_well, words = hook().test_connection()
    assert not is_well
    assert "do not respond" in words
    assert "check host, port, security_protocol" in words


def test_a_registry_that_is_none(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, cluster, extra={"registry_url": "ftp://host"})
    assert "not a URL" in hook().test_connection()[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        connect(monkeypatch, cluster, extra={"registry_url": url})
        assert "does not respond as one" in hook().test_connection()[1]


def test_a_login_in_the_registrys_url_is_refused_and_not_shown(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, cluster, extra={"registry_url": "http://me:s3cr3t@127.0.0.1:1"})
    is_well, words = hook().test_connection()
    assert not is_well
    assert "set registry_user and registry_password instead" in words
    assert "s3cr3t" not in words


@pytest.mark.slow  # make airflow-test
def test_a_registry_with_logins_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hook's test, and by Confluent's client with the hook's configuration."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        users, pem = tmp_path / "users", make_certificate(tmp_path)
        users.write_text("me:pass:word\n")
        flags = ("--users", str(users), "--tls-cert", str(pem))
        registry = RegistryProcess(broker.bootstrap, "_schemas", *flags)
        port = registry.url.rpartition(":")[2]
        path = str(tmp_path / "data" / "store")
        extra = {
            "registry_url": f"https://localhost:{port}/",
            "registry_user": "me",
            "registry_password": "pass:word",
            "ssl_ca_location": str(pem),
        }
        connect(monkeypatch, path, extra=extra)
        assert "0 subjects in the registry" in hook().test_connection()[1]
        with SchemaRegistryClient(hook().registry_config()) as client:
            assert client.get_subjects() == []
        for wrong in ({"registry_password": "another"}, {"registry_user": ""}):
            connect(monkeypatch, path, extra=extra | wrong)
            is_well, words = hook().test_connection()
            assert not is_well
            assert "refused the login: check registry_user and registry_password" in words
        connect(monkeypatch, path, extra=extra | {"ssl_ca_location": ""})
        assert "CERTIFICATE_VERIFY_FAILED" in hook().test_connection()[1]
        assert registry.stop() == 0
    finally:
        broker.kill()


def make_certificate(folder: Path) -> Path:
    """Make a file with a certificate of localhost and its key."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", str(key), "-out", str(certificate)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


def test_passwords_in_variables_are_masked_whatever_the_name(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakehead.connectors.airflow import hooks

    masked: list[str] = []
    monkeypatch.setattr(hooks, "mask_secret", masked.append)
    storage = {
        "AWS_REGION": "eu",
        "LAKEHEAD_SCHEMA_REGISTRY": "https://a:p%40ss@one:8081,https://:tok3n@two:8081",
        "PYICEBERG_CATALOG__LAKE__CREDENTIAL": "id:s3cr3t",
        "PYICEBERG_CATALOG__LAKE__URI": "https://catalog:8181/a@b",
    }
    connect(monkeypatch, cluster, extra={"storage": json.dumps(storage)})
    assert hook().storage_settings == storage
    assert set(masked) == {"p%40ss", "p@ss", "tok3n", "id:s3cr3t"}


def test_credentials_are_there_for_a_block_alone(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = {"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_VIRTUAL_HOST": True}
    connect(monkeypatch, cluster, extra={"storage": json.dumps(storage)})
    monkeypatch.setenv("AWS_REGION", "before")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(KeyError), hook().environment():
        assert os.environ["AWS_REGION"] == "eu"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == "s3cr3t"
        assert os.environ["AWS_VIRTUAL_HOST"] == "true"
        raise KeyError
    assert os.environ["AWS_REGION"] == "before"
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


def test_the_storage_settings_of_a_connection_decrypt_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, path = tmp_path / "keys", f"file:{tmp_path / 'cluster'}"
    add_key(keys, "k", rng=random.Random(1))
    settings = EncryptionSettings(provider="file", key_file=str(keys))
    store = encrypted(open_store(path), settings, clock=SystemClock(), rng=random.Random(2))
    LakeCluster(store).create_topic("orders")
    connect(monkeypatch, path)
    with pytest.raises(KeyUnavailable, match="is encrypted by the key 'k'"):
        hook().state()
    storage = {"LAKEHEAD_ENCRYPTION_KEY_FILE": str(keys)}
    connect(monkeypatch, path, extra={"storage": storage})
    assert set(hook().state().topics) == {"orders"}


@pytest.mark.parametrize(
    ("connection", "config"),
    [
        ({"host": "a", "port": 9092}, {"bootstrap.servers": "a:9092"}),
        ({"host": "a:1,b:2", "port": 9092}, {"bootstrap.servers": "a:1,b:2"}),
        (
            {"host": "a:1", "login": "me", "password": "x"},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "me",
                "sasl.password": "x",
            },
        ),
        (
            {"host": "a:1", "extra": {"security_protocol": "SSL", "ssl_ca_location": "/ca"}},
            {"security.protocol": "SSL", "ssl.ca.location": "/ca"},
        ),
    ],
)
def test_how_kafka_clients_reach_the_brokers(
    connection: dict[str, Any], config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, "/x", **connection)
    found = hook().kafka_config()
    assert config.items() <= found.items()
    assert ("sasl.password" in found) == ("password" in connection)


def test_without_brokers_there_is_no_client(cluster: str) -> None:
    with pytest.raises(failure(), match="names no brokers"):
        hook().kafka_config()


def test_airflow_finds_the_provider_and_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As an installed distribution declares it; its schema is checked by Airflow."""
    from airflow._shared import module_loading as core_loading
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk._shared import module_loading as sdk_loading
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    installed = tmp_path / "lakehead-0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lakehead\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text(
        "[apache_airflow_provider]\n"
        "provider_info = lakehead.connectors.airflow.provider_info:get_provider_info\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for loading in (core_loading, sdk_loading):
        loading._get_grouped_entry_points.cache_clear()
        request.addfinalizer(loading._get_grouped_entry_points.cache_clear)
    for manager in (ProvidersManager, ProvidersManagerTaskRuntime):
        monkeypatch.setattr(manager, "_instance", None)
        monkeypatch.setattr(manager, "_initialized", False)

    [form] = [one for one in HookMetaService.hook_meta_data() if one.connection_type == "lakehead"]
    assert form.hook_name == "Lakehead"
    assert form.extra_fields is not None
    assert set(form.extra_fields) == set(CONNECTION_FIELDS)
    assert form.extra_fields["storage"]["schema"]["format"] == "password"
    assert form.standard_fields is not None
    assert form.standard_fields.url_schema is not None
    assert form.standard_fields.url_schema.hidden
    runtime: Any = ProvidersManagerTaskRuntime
    found = runtime().hooks["lakehead"]
    assert found is not None
    assert found.connection_testable
    assert "lakehead" in runtime().asset_uri_handlers


def test_all_modules_that_the_provider_names_are_there() -> None:
    from importlib import import_module

    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for group in info[kind]:
            for module in group["python-modules"]:
                assert import_module(module).__doc__
