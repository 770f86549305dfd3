"""The instance metadata service of EC2, version 2: texts by their paths, and the identity of this
machine. Each request carries a token that a PUT returned, which a request forged through a proxy
cannot do
(`https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from lakehead.storage.errors import SettingsError, StorageError

ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""The variable by which AWS's own tools name another address of the service."""
TIMEOUT_S = 2.0
"""Of each of the steps of a request: to connect, and to receive the response."""
_TOKEN_TTL_S = 21_600  # the most that the service gives
_TRIES = 2
_RESPONSE_BYTES_MAX = 256 * 1024
_TOKEN = "/latest/api/token"  # noqa: S105 - a path
_DOCUMENT = "/latest/dynamic/instance-identity/document"
_TAGS = "/latest/meta-data/tags/instance"
_ZONE_ID = "/latest/meta-data/placement/availability-zone-id"


class MetadataUnanswered(StorageError):
    """The metadata service gave no valid response: repeat the request later, on EC2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine on EC2. `tags` are None where the service does not give them: they are an option of
    the instance, off by default.

    `zone` is a name, such as us-east-1a, which is another place in another account. `zone_id`, such
    as use1-az4, is one place for all; it is empty where the service does not give it.
    """

    instance_id: str
    region: str
    zone: str
    zone_id: str = ""
    tags: Mapping[str, str] | None = None


class InstanceMetadata:
    """A client of the service. Requests block a thread, for `timeout_s` a step."""

    def __init__(self, endpoint: str = ENDPOINT, *, timeout_s: float = TIMEOUT_S) -> None:
        url = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        if url.scheme not in {"", "http"} or not url.hostname:
            raise SettingsError(f"{ENDPOINT_VARIABLE}: {endpoint} is not an http address")
        self._host, self._port = url.hostname, url.port or 80
        self._timeout_s = timeout_s
        self._token = ""

    async def instance(self) -> Instance:
        """Return this machine's instance. Raises SettingsError if it is not on EC2."""
        try:
            document = parsed_object(await self.text(_DOCUMENT), _DOCUMENT)
            return Instance(
                instance_id=document["instanceId"],
                region=document["region"],
                zone=document["availabilityZone"],
                zone_id=(await self.text(_ZONE_ID) or "").strip(),
                tags=await self._tags(),
            )
        except KeyError as error:
            raise SettingsError(f"EC2's identity document has no {error}") from None
        except MetadataUnanswered as error:
            raise SettingsError(
                f"this machine is not on EC2, or may not read its metadata ({error}): turn its "
                "metadata service on, with a hop limit of 2 inside a container"
            ) from error

    async def text(self, path: str) -> str | None:
        """Return a text, None where there is none of this name. Raises MetadataUnanswered."""
        return await asyncio.to_thread(self._get_blocking, path)

    async def _tags(self) -> dict[str, str] | None:
        names = await self.text(_TAGS)
        if names is None:
            return None
        return {
            name: await self.text(f"{_TAGS}/{quote(name, safe=':')}") or ""
            for name in names.split("\n")
            if name
        }

    def _get_blocking(self, path: str) -> str | None:
        status, text = self._with_token(path)
        if status == http.client.UNAUTHORIZED:
            self._token = ""  # it has run out, or the machine was restored from another
            status, text = self._with_token(path)
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise MetadataUnanswered(f"{path} returned status {status}")
        return text

    def _with_token(self, path: str) -> tuple[int, str]:
        token = self._token or self._new_token()
        return self._response("GET", path, {"X-aws-ec2-metadata-token": token})

    def _new_token(self) -> str:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        status, text = self._response("PUT", _TOKEN, ttl)
        if status != http.client.OK or not text.strip().isprintable():
            raise MetadataUnanswered(f"no token was given: status {status}")
        self._token = text.strip()
        return self._token

    def _response(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        reason = ""
        for _ in range(_TRIES):
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            try:
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
                return response.status, response.read(_RESPONSE_BYTES_MAX).decode(errors="replace")
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            finally:
                connection.close()
        raise MetadataUnanswered(f"{self._host}:{self._port} does not respond: {reason}")


def instance_metadata() -> InstanceMetadata:
    """Return the metadata service of this machine, where AWS's own tools look for it."""
    return InstanceMetadata(os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)


def parsed_object(text: str | None, path: str) -> dict[str, str]:
    """Return the JSON object at a path, with its values as texts. Raises MetadataUnanswered."""
    parsed = parsed_json(text or "")
    if not isinstance(parsed, dict):
        raise MetadataUnanswered(f"{path} is malformed")
    return {str(name): str(value) for name, value in parsed.items()}


def parsed_json(text: str) -> Any:
    """Return a JSON value, or None if the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
