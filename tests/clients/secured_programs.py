"""Clients that log in, as processes: each writes and reads by commands, one after the other.

`LAKEHEAD_CACHE` moves the folder where they are built. A client that this machine cannot have
raises CannotBeHad.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import QUICK_START
from bench.maven import MissingTool
from tests.clients.programs import FRANZ_GO, NPM_PACKAGES, CannotBeHad, install, program_folder
from tests.clients.secured_client import CLIENTS as PIP_CLIENTS

_SOURCES = Path(__file__).parent
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The address for a client, and its proof of its name."""

    bootstrap: str
    protocol: str
    """Kafka's `security.protocol`."""
    authority: str
    """File with the certificate of the authority that the client trusts."""
    certificate: str = ""
    """File with the client's own key and certificates."""
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token_file: str = ""
    """File with the token that is good now."""
    limit_s: int = 120
    """Until the client gives up a command."""

    @property
    def java(self) -> dict[str, str]:
        """Settings of a Java client."""
        limit_ms = str(self.limit_s * 1000)
        limits = ("max.block.ms", "request.timeout.ms", "delivery.timeout.ms")
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "default.api.timeout.ms": limit_ms,
            **dict.fromkeys(limits, limit_ms),
        }
        if self.protocol.endswith("SSL"):
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if self.certificate:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if not self.mechanism:
            return settings
        options = f' username="{self.user}" password="{self.password}"'
        if self.mechanism == "OAUTHBEARER":
            options = ""
            handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            settings |= {
                "sasl.login.callback.handler.class": handler,
                "sasl.oauthbearer.token.endpoint.url": Path(self.token_file).as_uri(),
            }
        module = _LOGIN_MODULES[self.mechanism]
        return settings | {
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f"{module} required{options};",
        }


class SecuredProgram:
    """A client that runs; `command` gets a file with the login and a topic. Use it in a `with`."""

    def __init__(self, command: Sequence[str], settings: str, topic: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="secured-client-")
        self._log = (Path(self._folder.name) / "errors.log").open("w+")
        file = Path(self._folder.name) / "settings"
        file.write_text(settings)
        self._process = subprocess.Popen(
            [*command, str(file), topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()
        self._folder.cleanup()

    def send(self, value: str) -> str:
        """Write a record; return why the client could not, empty if it did."""
        done = self._command(f"send {value}")
        return done.removeprefix("refused ") if done != "ok" else ""

    def read(self, count: int) -> list[str]:
        """Return the values of the first records of partition 0."""
        done = self._command(f"read {count}")
        assert done.startswith("ok "), done
        return done.removeprefix("ok ").split(",")

    def _command(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n")
        stdin.flush()
        done = stdout.readline().strip()
        if not done:
            self._log.seek(0)
            raise AssertionError(f"the client ended: {self._log.read()[-2000:]}")
        return done


Start = Callable[[Login, str], SecuredProgram]
"""Returns a client that runs, of a login and a topic."""


def _by_json(*command: str) -> Start:
    return lambda login, topic: SecuredProgram(command, json.dumps(asdict(login)), topic)


def _kafkajs() -> Start:
    folder = program_folder("kafkajs")
    if not (folder / "node_modules" / "kafkajs").is_dir():
        install(folder, "npm", "install", "--no-audit", "--no-fund", *NPM_PACKAGES)
    shutil.copy(_SOURCES / "secured_client.js", folder / "secured.js")
    return _by_json("node", str(folder / "secured.js"))


def _franz_go() -> Start:
    folder = program_folder("franz-go-secured")
    source = (_SOURCES / "secured_client.go").read_text()
    program = folder / "client"
    if not program.exists() or (folder / "main.go").read_text() != source:
        (folder / "main.go").write_text(source)
        if not (folder / "go.mod").exists():
            install(folder, "go", "mod", "init", "client")
        module, _, version = FRANZ_GO.partition("@")
        for package in ("kgo", "sasl/oauth", "sasl/plain", "sasl/scram"):
            install(folder, "go", "get", f"{module}/pkg/{package}@{version}")
        install(folder, "go", "build", "-o", str(program))
    return _by_json(str(program))


def _java() -> Start:
    folder = program_folder("java")
    try:
        jars = f"{jars_directory()}/*"
    except MissingTool as error:
        raise CannotBeHad(str(error)) from error
    install(folder, "javac", "-cp", jars, "-d", str(folder), str(_SOURCES / "SecuredClient.java"))

    def start(login: Login, topic: str) -> SecuredProgram:
        token = Path(login.token_file).as_uri() if login.token_file else ""
        allowed = (f"{_ALLOWED}.urls={token}", f"{_ALLOWED}.files={login.token_file}")
        command = (
            *("java", *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *allowed),
            *("-cp", f"{folder}:{jars}", "SecuredClient"),
        )
        settings = "".join(f"{name}={value}\n" for name, value in login.java.items())
        return SecuredProgram(command, settings, topic)

    return start


def _pip(name: str) -> Start:
    return _by_json(sys.executable, str(_SOURCES / "secured_client.py"), name)


MAKERS: dict[str, Callable[[], Start]] = {
    "java": _java,
    **{name: lambda name=name: _pip(name) for name in PIP_CLIENTS},  # type: ignore[misc]
    "franz-go": _franz_go,
    "kafkajs": _kafkajs,
}
"""By the client's name; raises CannotBeHad."""
