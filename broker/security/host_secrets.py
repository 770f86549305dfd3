"""Secrets of a host as files of its nodes: AWS Secrets Manager keeps them, a host has copies.

Two secrets of a cluster are JSON objects: PREFIX/tls with the PEM texts `ca`, `certificate` (with
its chain) and `key`, PREFIX/first-admin with `password`. Nodes read files and no secrets, so that
they start while Secrets Manager does not respond, and load a new certificate without a restart.
"""

import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from lakehead.broker.security.key_store import client_context, load_material, server_context
from lakehead.broker.security.private_file import write_private_file
from lakehead.storage.errors import SettingsError

KEY_FILE, TRUST_FILE = "host.pem", "ca.pem"
COMMAND_FILE = "nodes.properties"
"""Settings by which commands of the host reach nodes, for --command-config."""
ADMIN_FILE, ADMIN_SETTINGS = "first-admin", "first-admin.toml"
_MODE = 0o640
"""The folder's group reads them: the nodes are another user than the writer."""
_VALUES = {
    "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https",
}
_log = structlog.get_logger("broker.secrets")

SecretReader = Callable[[str], str]
"""Returns the text of a secret by its name. Raises SettingsError."""


class HostSecrets:
    """The copies in `folder` of the secrets PREFIX/tls and PREFIX/first-admin."""

    def __init__(self, folder: Path, prefix: str, read: SecretReader) -> None:
        self._folder = folder
        self._prefix = prefix
        self._read = read

    def update_tls(self, address: str) -> bool:
        """Write the key and the certificates that the secret has now. Return true if there are
        some, new or old.

        They are tried before: the handshake of two nodes at `address` has to succeed. The old ones
        stay if it does not, or if the secret cannot be read.
        """
        try:
            fields = self._fields("tls", ("ca", "certificate", "key"))
            check_certificate(fields, address)
        except SettingsError as error:
            has_files = all((self._folder / name).exists() for name in (KEY_FILE, TRUST_FILE))
            self._report("tls", error, has_files=has_files)
            return has_files
        self._write(TRUST_FILE, f"{fields['ca']}\n")
        self._write(KEY_FILE, f"{fields['key']}\n{fields['certificate']}\n")
        properties = {
            "security.protocol": "SSL",
            "ssl.keystore.location": self._folder / KEY_FILE,
            "ssl.truststore.location": self._folder / TRUST_FILE,
        }
        self._write(COMMAND_FILE, "".join(f"{name}={at}\n" for name, at in properties.items()))
        return True

    def update_admin(self, user: str) -> bool:
        """Write the password of the first user, and the settings that name it, for the nodes of a
        new cluster. Return true if they are there.
        """
        try:
            password = self._fields("first-admin", ("password",))["password"]
        except SettingsError as error:
            has_file = (self._folder / ADMIN_SETTINGS).exists()
            self._report("first-admin", error, has_files=has_file)
            return has_file
        self._write(ADMIN_FILE, f"{password}\n")
        reference = f"${{directory:{self._folder}:{ADMIN_FILE}}}"
        settings = {"bootstrap.admin": user, "bootstrap.admin.password": reference}
        lines = (f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())
        self._write(ADMIN_SETTINGS, "".join(lines))
        return True

    def remove_admin(self) -> None:
        """Remove these: the cluster exists, and its users are its own."""
        for name in (ADMIN_SETTINGS, ADMIN_FILE):
            (self._folder / name).unlink(missing_ok=True)

    def _fields(self, name: str, wanted: tuple[str, ...]) -> dict[str, str]:
        try:
            content = json.loads(self._read(f"{self._prefix}/{name}"))
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise SettingsError(f"it is not a JSON object with {_listed(wanted)}")
        missing = [one for one in wanted if not isinstance(content.get(one), str)]
        if missing := missing or [one for one in wanted if not content[one].strip()]:
            raise SettingsError(f"it has no text {_listed(missing)}")
        return {one: content[one] for one in wanted}

    def _report(self, name: str, error: SettingsError, *, has_files: bool) -> None:
        secret = f"{self._prefix}/{name}"
        command = (
            f"aws secretsmanager put-secret-value --secret-id {secret} --secret-string file://"
        )
        event = "secret_refused" if has_files else "secret_awaited"
        _log.error(event, secret=secret, reason=str(error), command=f"{command}FILE.json")

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        if not path.exists() or path.read_text() != text:
            write_private_file(path, text.encode(), _MODE)
            _log.info("secret_written", secret=self._prefix, file=str(path))


def check_certificate(fields: Mapping[str, str], address: str) -> None:
    """Try the handshake of two nodes with the texts `ca`, `certificate` and `key`, of which the one
    that is connected to has the name or address `address`. Raises SettingsError.
    """
    given = _VALUES | {
        "ssl.keystore.key": fields["key"],
        "ssl.keystore.certificate.chain": fields["certificate"],
        "ssl.truststore.certificates": fields["ca"],
    }

    def value(name: str) -> str:
        return given.get(name, "")

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    material = load_material(value)
    server = server_context(material, value, "required")
    client = client_context(material, value)
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=address),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(4):  # a handshake is two round trips at the most
            for side in sides:
                _step(side)
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(
            f"nodes would refuse the certificate at {address}: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise SettingsError(f"nodes could not connect at {address}: {error.reason}") from None


def _step(side: ssl.SSLObject) -> None:
    try:
        side.do_handshake()
        side.read(1)  # where a certificate is refused after the other side's handshake
    except ssl.SSLWantReadError:
        pass


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
