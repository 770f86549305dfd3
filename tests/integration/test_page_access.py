"""The page of metrics is for this machine, or for clients with credentials over TLS."""

import base64
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.process import free_port
from lakehead.broker.observability.page_access import LOOPBACK, PageAccess
from lakehead.broker.settings import Settings
from lakehead.storage.errors import SettingsError
from tests.integration.test_node_protocol import running
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

PASSWORD, TOKEN, KEY_PASSWORD = "pw-m4rk", "t0ken-m4rk", "k3y-m4rk"
USER = {"authorization": "Basic " + base64.b64encode(f"prom:{PASSWORD}".encode()).decode()}


def certificate(path: Path, name: str = "localhost", password: str = "") -> None:
    """Write a private key and a certificate of it to one file."""
    key = ("-passout", f"pass:{password}") if password else ("-nodes",)
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-keyout", path.with_suffix(".key"), "-out", path.with_suffix(".cert"), *key),
        ],
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    path.write_bytes(path.with_suffix(".key").read_bytes() + path.with_suffix(".cert").read_bytes())


def status(url: str, headers: dict[str, str], trusted: Path) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=trusted)
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["www-authenticate"] or error.read().decode()


def plain_response(port: int) -> bytes:
    """Return the bytes that a client without TLS receives."""
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        plain.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        try:
            return plain.recv(1000)
        except ConnectionResetError:
            return b""


def test_the_page_is_for_this_machine_unless_it_is_guarded_or_opened(tmp_path: Path) -> None:
    pem = tmp_path / "page.pem"
    certificate(pem)
    tls = {"metrics_ssl_keystore_location": str(pem)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, LOOPBACK),
        (tls, LOOPBACK),
        ({"metrics_tokens": "a"}, LOOPBACK),
        ({"metrics_users": "a:b", **tls}, "0.0.0.0"),
        ({"metrics_tokens": "a", **tls}, "0.0.0.0"),
        ({"metrics_host": "10.0.0.1"}, "10.0.0.1"),
        ({"metrics_host": "10.0.0.1", "metrics_tokens": "a", **tls}, "10.0.0.1"),
    ]
    for given, host in cases:
        settings = replace(Settings(host="0.0.0.0"), **given)
        assert PageAccess(settings).host == host, given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics_users": "secret-mark"}, "a user is name:password"),
        ({"metrics_users": "a:b,:secret-mark"}, "a user is name:password"),
        ({"metrics_ssl_key_password": "secret-mark"}, "needs metrics.ssl.keystore.location"),
        ({"metrics_ssl_keystore_location": "/none/such"}, "No such file"),
        ({"metrics_ssl_keystore_location": "/etc/hostname"}, "in PEM"),
    ],
)
def test_wrong_settings_are_one_line_without_a_secret(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        PageAccess(replace(Settings(), **given))
    assert "secret-mark" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_credentials_are_read_strictly() -> None:
    access = PageAccess(Settings(metrics_users="prom:a:b, u:p", metrics_tokens="t1,t2"))
    given = {
        "": False,
        "Basic": False,
        "Basic !": False,
        "Bearer ": False,
        "Bearer t3": False,
        "Bearer t1": True,
        "bearer t2": True,
        "Bearer t1,t2": False,
        "Digest t1": False,
        f"Basic {base64.b64encode(b'prom:a:b').decode()}": True,
        f"Basic {base64.b64encode(b'prom:a').decode()}": False,
        f"Basic {base64.b64encode(b'other:').decode()}": False,
        f"Basic {base64.b64encode(bytes([255])).decode()}": False,
        "Bearer \udcff": False,
    }
    assert {header: access.is_known(header) for header in given} == given


def test_scrapes_need_credentials_over_tls_and_probes_of_load_balancers_none(
    tmp_path: Path,
) -> None:
    pem, port = tmp_path / "page.pem", free_port()
    certificate(pem, password=KEY_PASSWORD)
    trusted = pem.with_suffix(".cert")
    settings = tmp_path / "settings.toml"
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"users=prom:{PASSWORD}\ntokens=old,{TOKEN}\nkey={KEY_PASSWORD}\n")
    settings.write_text(
        f'metrics.port = {port}\nmetrics.ssl.keystore.location = "{pem}"\n'
        f'metrics.users = "${{file:{secrets}:users}}"\n'
        f'metrics.tokens = "${{file:{secrets}:tokens}}"\n'
        f'metrics.ssl.key.password = "${{file:{secrets}:key}}"\n'
    )
    broker = BrokerProcess(tmp_path, ("--wal.size", "64m", "--config", str(settings)))
    broker.start()
    try:
        page = f"https://localhost:{port}"
        bearer = {"authorization": f"Bearer {TOKEN}"}
        for headers in (USER, bearer, {"authorization": "Bearer old"}):
            assert "lakehead_connections" in status(f"{page}/metrics", headers, trusted)[1]
            assert '"troubles"' in status(f"{page}/health", headers, trusted)[1]
        for path in ("/metrics", "/health", "/x"):
            for headers in ({}, {"authorization": "Bearer x"}):
                code, challenge = status(page + path, headers, trusted)
                assert (code, challenge) == (401, 'Basic realm="lakehead"')
        # A node listens a moment before it takes part in its cluster and is ready.
        ready = (200, '{"status": "ok"}\n')
        assert wait_until(lambda: status(f"{page}/ready", {}, trusted) == ready, 60)
        assert plain_response(port) == b""
        certificate(pem, password=KEY_PASSWORD)  # another one, without a restart
        assert status(f"{page}/live", {}, trusted)[0] == 200
        for mark in (PASSWORD, TOKEN, KEY_PASSWORD):
            assert mark not in broker.log
    finally:
        broker.kill()


async def test_a_page_without_settings_listens_at_the_loopback_address() -> None:
    async with running(metrics_port=0) as node:
        assert node.page is not None
        assert node.page.port > 0
        assert PageAccess(node.settings).host == LOOPBACK
