"""Values of settings that lie elsewhere: `${provider:path:key}` in a setting stands for them.

The grammar and the first three providers are Kafka's (KIP-297, KIP-421, KIP-632, KIP-887), the
others those of AWS's plugin for MSK. A node reads references when it starts, in what its operator
gave it: never in a request, and never in a value that a reference has brought.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.hidden_fields import HIDDEN

_VALUE_MAX = 1 << 20
"""Bytes of a file that a value may lie in."""
_REFERENCE = re.compile(r"\$\{([^}:]*):([^}]*)\}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CONNECT_S, _READ_S = 5, 10


class Secret(str):
    """A text that came from a provider, or that is a secret by the setting it belongs to. Its
    representation hides it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


def is_reference(text: str) -> bool:
    """Return true if a text consists of a reference alone."""
    return _REFERENCE.fullmatch(text) is not None


AwsCall = Callable[[str, str, str, Mapping[str, str]], Mapping[str, Any]]
"""Of a service, a Region ("": the machine's own), an operation and its parameters, the response.
Raises SettingsError.
"""


class ConfigProviders:
    """The providers, with what each has read so far: a file or a secret is read once."""

    def __init__(self, environment: Mapping[str, str], aws: AwsCall | None = None) -> None:
        self._environment = environment
        self._aws = aws or call_aws
        self._files: dict[str, dict[str, str]] = {}
        self._secrets: dict[str, str] = {}
        self._providers: Mapping[str, Callable[[str], str]] = {
            "file": self._of_file,
            "directory": self._of_directory,
            "env": self._of_environment,
            "secretsmanager": self._of_secrets_manager,
            "ssm": self._of_ssm,
        }

    def resolved(self, name: str, value: object) -> object:
        """Return the value of the setting `name` with each reference replaced; a text with one is a
        Secret. Raises SettingsError, a line without any value in it.
        """
        if not isinstance(value, str) or _REFERENCE.search(value) is None:
            return value
        try:
            return Secret(_REFERENCE.sub(self._value, value))
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None

    def _value(self, found: re.Match[str]) -> str:
        provider = self._providers.get(found[1])
        if provider is None:
            raise SettingsError(
                f"{found[0]}: the provider {found[1]!r} is not one of {', '.join(self._providers)}"
            )
        try:
            return provider(found[2])
        except SettingsError as error:
            raise SettingsError(f"{found[0]}: {error}") from None

    def _of_file(self, place: str) -> str:
        """Kafka's FileConfigProvider: a key of a file of properties."""
        path, colon, key = place.rpartition(":")
        if not colon:
            raise SettingsError(
                "write ${file:/path:key}, or ${directory:/path:name} for all of a file"
            )
        if path not in self._files:
            self._files[path] = parse_properties(_text(Path(path)))
        if key not in self._files[path]:
            raise SettingsError("the file has no such key")
        return self._files[path][key]

    def _of_directory(self, place: str) -> str:
        """Kafka's DirectoryConfigProvider: a file of a folder, without the end of its last line."""
        folder, colon, name = place.rpartition(":")
        if not colon or "/" in name or name in {"", ".", ".."}:
            raise SettingsError("write ${directory:/path:name}, with the name of a file in it")
        return _text(Path(folder) / name).removesuffix("\n").removesuffix("\r")

    def _of_environment(self, name: str) -> str:
        """Kafka's EnvVarConfigProvider."""
        name = name.removeprefix(":")
        if name not in self._environment:
            raise SettingsError("the environment has no such variable")
        return self._environment[name]

    def _of_secrets_manager(self, place: str) -> str:
        """The text of a secret, or a field of the JSON object that it is."""
        secret, field = _split_arn(place, parts=7)
        if secret not in self._secrets:
            response = self._aws(
                "secretsmanager", _region(secret), "get_secret_value", {"SecretId": secret}
            )
            text = response.get("SecretString")
            if not isinstance(text, str):
                raise SettingsError("the secret has bytes and not a text")
            self._secrets[secret] = text
        text = self._secrets[secret]
        return _field(text, field) if field else text

    def _of_ssm(self, place: str) -> str:
        """The text of a parameter of Systems Manager, decrypted."""
        name = place.removeprefix(":")
        parameters = {"Name": name, "WithDecryption": True}
        response = self._aws("ssm", _region(name), "get_parameter", parameters)  # type: ignore[arg-type]
        return str(response["Parameter"]["Value"])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_VALUE_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"cannot read the file: {reason}") from None
    if len(content) > _VALUE_MAX:
        raise SettingsError(f"the file has more than {_VALUE_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SettingsError("the file is not text in UTF-8") from None


def _split_arn(place: str, *, parts: int) -> tuple[str, str]:
    """Return a name, or an ARN of so many parts, and what follows behind one more colon."""
    count = parts if place.startswith("arn:") else 1
    split = place.split(":")
    return ":".join(split[:count]), ":".join(split[count:])


def _region(name: str) -> str:
    return name.split(":")[3] if name.startswith("arn:") and name.count(":") >= 5 else ""


def _field(text: str, field: str) -> str:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise SettingsError("the secret is not a JSON object, which has fields")
    if field not in content:
        raise SettingsError("the secret has no such field")
    value = content[field]
    return value if isinstance(value, str) else json.dumps(value)


def parse_properties(text: str) -> dict[str, str]:
    """Return the pairs of a text in the format of Java's Properties: `key=value`, `key: value` or
    `key value`, comments by # and !, escapes, lines that go on behind a backslash.
    """
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        whole = line.lstrip(" \t\f")
        if not whole or whole[0] in "#!":
            continue
        while _goes_on(whole):
            whole = whole[:-1] + next(lines, "").lstrip(" \t\f")
        key, value = _pair(whole)
        found[key] = value
    return found


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _pair(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescaped(line[:at]), _unescaped(rest)


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)


def call_aws(
    service: str, region: str, operation: str, parameters: Mapping[str, str]
) -> Mapping[str, Any]:
    """Call AWS by boto3, with credentials from where AWS's own tools look. Raises SettingsError."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    limits = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "max_attempts": 3},
    )
    try:
        client = boto3.Session().client(service, region_name=region or None, config=limits)
        response: Mapping[str, Any] = getattr(client, operation)(**parameters)
    except ClientError as error:
        reason = error.response.get("Error", {})
        raise SettingsError(
            f"AWS refused it: {reason.get('Code')}: {reason.get('Message')}"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(f"AWS cannot be reached: {error}") from None
    return response
