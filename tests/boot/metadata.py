"""The metadata service that guests ask, at its own address in the test's own network.

All machines ask one address. Who asks is told by where the request comes from; of guests, for which
QEMU connects, by the process that has the connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from tests.support.fake_imds import FakeImds

ADDRESS = "169.254.169.254"
ROLE = "lakehead-broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """What an instance is told of itself."""

    instance_id: str
    region: str
    zone: str
    address: str
    subnet: str
    mac: str
    user_data: str
    tags: Mapping[str, str]
    access_key: str
    secret_key: str


def service_of(facts: InstanceFacts) -> FakeImds:
    """Return a metadata service with everything that cloud-init and AWS's tools ask for."""
    imds = FakeImds()
    document = {
        "instanceId": facts.instance_id,
        "region": facts.region,
        "availabilityZone": facts.zone,
        "privateIp": facts.address,
        "accountId": "123456789012",
        "instanceType": "m7i.large",
    }
    credentials = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "LastUpdated": "2026-01-01T00:00:00Z",
        "AccessKeyId": facts.access_key,
        "SecretAccessKey": facts.secret_key,
        "Token": "",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    card = f"network/interfaces/macs/{facts.mac}"
    about = {
        "instance-id": facts.instance_id,
        "local-ipv4": facts.address,
        "local-hostname": f"ip-{facts.address.replace('.', '-')}",
        "hostname": f"ip-{facts.address.replace('.', '-')}",
        "mac": facts.mac,
        "placement/availability-zone": facts.zone,
        "placement/availability-zone-id": "use1-az6",
        "placement/region": facts.region,
        f"{card}/device-number": "0",
        f"{card}/local-ipv4s": facts.address,
        f"{card}/mac": facts.mac,
        f"{card}/subnet-ipv4-cidr-block": facts.subnet,
        "iam/info": json.dumps({"Code": "Success", "InstanceProfileArn": f"arn:aws:iam::1:{ROLE}"}),
        f"iam/security-credentials/{ROLE}": json.dumps(credentials),
    } | {f"tags/instance/{name}": value for name, value in facts.tags.items()}
    imds.texts = {
        "user-data": facts.user_data,
        "dynamic/instance-identity/document": json.dumps(document),
    } | {f"meta-data/{name}": text for name, text in about.items()}
    imds.texts |= _listings(imds.texts)
    return imds


def _listings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the folders' own texts: what is in each, folders with a slash."""
    folders: dict[str, dict[str, None]] = {}
    for path in texts:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            name = parts[depth] + ("/" if depth + 1 < len(parts) else "")
            folders.setdefault("/".join(parts[:depth]), {})[name] = None
    listed = {folder: "\n".join(names) for folder, names in folders.items()}
    return listed | {f"{folder}/": text for folder, text in listed.items()}


@contextmanager
def serve_metadata(machines: Mapping[str | int, FakeImds]) -> Iterator[None]:
    """Serve each its own; `machines` is by address, of guests by QEMU's pid, and may grow."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

        def _answer(self, method: str) -> None:
            token = self.headers.get("X-aws-ec2-metadata-token", "")
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            imds = _asking(machines, *self.client_address)
            # The version in front (cloud-init asks for dated ones) changes nothing here.
            path = "/latest/" + self.path.lstrip("/").partition("/")[2]
            status, text = imds.answer(method, path, token, ttl) if imds else (503, "")
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer((ADDRESS, 80), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _asking(machines: Mapping[str | int, FakeImds], address: str, port: int) -> FakeImds | None:
    if address in machines:
        return machines[address]
    for pid, imds in list(machines.items()):
        if isinstance(pid, int) and psutil.pid_exists(pid):
            connections = psutil.Process(pid).net_connections("tcp4")
            if any(found.laddr.port == port for found in connections):
                return imds
    return None
