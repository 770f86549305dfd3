"""A schema registry's client: schemas by id, over the REST API that Confluent's registry has.

Two outcomes are distinct: *there is no such schema* is a fact about a record, *the registry is not
reachable* is not. A schema never changes under its id, so a schema that was read is kept.

Credentials come from the environment and not from a topic's configs, which every client may read:
`LAKEHEAD_SCHEMA_REGISTRY` holds URLs with user and password (or `:token@` for a bearer token),
separated by commas, and each is used for the registry of its scheme, host and port alone.
`LAKEHEAD_SCHEMA_REGISTRY_CA_FILE`, `_CERT_FILE` and `_KEY_FILE` name PEM files for TLS.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError

CREDENTIALS = "LAKEHEAD_SCHEMA_REGISTRY"
_UNKNOWN_CODES = (40401, 40402, 40403)  # subject, version, schema not found
_UNKNOWN_KEPT_S = 30.0
_RESPONSE_BYTES_MAX = 16 << 20
_REFERENCES_MAX = 1000


class _Incomplete(Exception):
    """A schema refers to what the registry does not have, or to too much."""


class RegistryUnavailable(LakeheadError):
    """The registry does not respond: pause, no record is at fault. The message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A schema that another one uses, by the name it uses it under."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema and those it refers to, each after those it needs itself; `problem` says why they
    are not all there.
    """

    schema_id: int
    kind: str  # AVRO, JSON, PROTOBUF
    text: str
    references: tuple[Reference, ...] = ()
    problem: str = ""


class SchemaRegistry:
    """Schemas of one registry, kept once read. `urls` are its nodes, separated by commas."""

    def __init__(
        self, urls: str, *, environment: Mapping[str, str], clock: Clock, retries: int = 4
    ) -> None:
        self._urls = [_checked(url.strip()) for url in urls.split(",") if url.strip()]
        if not self._urls:
            raise SettingsError("the URL of the schema registry is empty")
        self._environment = environment
        self._clock = clock
        self._known: dict[int, RegisteredSchema] = {}
        self._unknown: dict[int, float] = {}
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=5, read=10),
            retries=urllib3.Retry(
                total=retries,
                redirect=False,  # to an address that no operator allowed
                backoff_factor=0.2,
                status_forcelist=(429, 500, 502, 503, 504),
                allowed_methods=("GET",),
                raise_on_status=False,
            ),
            ca_certs=environment.get(f"{CREDENTIALS}_CA_FILE"),
            cert_file=environment.get(f"{CREDENTIALS}_CERT_FILE"),
            key_file=environment.get(f"{CREDENTIALS}_KEY_FILE"),
        )

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id, None if the registry has none.

        Raises RegistryUnavailable.
        """
        now = self._clock.monotonic()
        known = self._known.get(schema_id)
        if known is not None and (not known.problem or self._is_fresh(schema_id, now)):
            return known
        if known is None and self._is_fresh(schema_id, now):
            return None
        found = self._get(f"/schemas/ids/{schema_id}")
        if found is None:
            self._unknown[schema_id] = now
            return None
        references: dict[str, Reference] = {}
        problem = ""
        try:
            self._follow(found, references)
        except _Incomplete as error:
            problem, self._unknown[schema_id] = str(error), now
        schema = RegisteredSchema(
            schema_id=schema_id,
            kind=str(found.get("schemaType") or "AVRO").upper(),
            text=_text(found),
            references=tuple(references.values()),
            problem=problem,
        )
        self._known[schema_id] = schema
        return schema

    def _is_fresh(self, schema_id: int, now: float) -> bool:
        """Return whether it was just looked for, and was not there as a whole."""
        return self._unknown.get(schema_id, -_UNKNOWN_KEPT_S) > now - _UNKNOWN_KEPT_S

    def subjects(self, schema_id: int) -> tuple[str, ...]:
        """Return the subjects that have the schema of an id, none if the registry has no such
        schema. Raises RegistryUnavailable.
        """
        found = self._get(f"/schemas/ids/{schema_id}/subjects", of=list)
        return tuple(map(str, found or ()))

    def _follow(self, schema: dict[str, Any], found: dict[str, Reference]) -> None:
        """Read what a schema refers to, depth first. Raises _Incomplete."""
        for reference in schema.get("references") or ():
            name, subject = str(reference["name"]), quote(str(reference["subject"]), safe="")
            if name in found:
                continue
            if len(found) >= _REFERENCES_MAX:
                raise _Incomplete(f"it refers to more than {_REFERENCES_MAX} others")
            target = self._get(
                f"/subjects/{subject}/versions/{int(reference['version'])}?deleted=true"
            )
            if target is None:
                raise _Incomplete(
                    f"it refers to version {reference['version']} of subject "
                    f"{reference['subject']}, which {self._urls[0]} does not have"
                )
            self._follow(target, found)
            found[name] = Reference(name=name, text=_text(target))

    def _get(self, path: str, *, of: type = dict) -> Any:
        """The response, a schema as an object or a list; None for "not found"."""
        problem = ""
        for url in self._urls:
            try:
                response = self._pool.request(
                    "GET", url + path, headers=self._headers(url), preload_content=False
                )
                body = response.read(_RESPONSE_BYTES_MAX + 1)
                response.close()
            except (HTTPError, OSError) as error:
                problem = f"{url}: request failed: {_short(error)}"
                continue
            found = _decoded(body)
            decoded = found if isinstance(found, dict) else {}
            is_wanted = isinstance(found, of) and (of is list or "schema" in decoded)
            if response.status == 200 and is_wanted:
                return found
            if response.status == 404 and decoded.get("error_code") in _UNKNOWN_CODES:
                return None
            problem = f"{url}{path} returned {response.status}{_advice(response.status, decoded)}"
        raise RegistryUnavailable(
            f"schema registry {problem}: nothing is lost, try again when it responds "
            "(lakehead.table.schema.registry.url)"
        )

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        for entry in self._environment.get(CREDENTIALS, "").split(","):
            given = urlsplit(entry.strip())
            if _origin(given) != _origin(urlsplit(url)):
                continue
            if given.username:
                pair = f"{unquote(given.username)}:{unquote(given.password or '')}"
                headers |= urllib3.make_headers(basic_auth=pair)
            elif given.password:
                headers["authorization"] = f"Bearer {unquote(given.password)}"
        return headers


@lru_cache(maxsize=16)
def schema_registry(urls: str) -> SchemaRegistry:
    """Return this process's client of a registry: its schemas are read once."""
    return SchemaRegistry(urls, environment=os.environ, clock=SystemClock())


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{url!r} is not the URL of a schema registry: https://host:port")
    if parts.username or parts.password:
        raise SettingsError(
            f"the URL of the schema registry {parts.hostname} holds a password, which every client "
            f"of the topic could read: put it into the environment as {CREDENTIALS}"
        )
    return url.rstrip("/")


def _origin(parts: Any) -> tuple[str, str | None, int | None]:
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(found: dict[str, Any]) -> str:
    return str(found["schema"])


def _advice(status: int, decoded: dict[str, Any]) -> str:
    if status in (401, 403):
        return f": set {CREDENTIALS}=https://user:password@host:port in the environment"
    if status == 200 or (status == 404 and not decoded):
        return ": it is not a schema registry"
    return f": {decoded.get('message', '')}"[:200].rstrip(": ")


def _short(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split())[:200]
