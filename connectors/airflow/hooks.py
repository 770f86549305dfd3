"""The hook of the connection type `lakehead`: its fields, and its test of store and brokers."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
)
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from lakehead.connectors.airflow.features import AIRFLOW

if AIRFLOW >= (3, 1):
    from airflow.sdk.log import mask_secret
else:
    from airflow.sdk.execution_time.secrets_masker import mask_secret  # type: ignore[no-redef]

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from lakehead.storage.metadata.state import MetadataImage


_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|PRIVATE|CREDENTIAL")
_LOGIN = re.compile(r"://[^/\s,@]*:([^/\s,]+)@")
"""The password of a URL, as those of LAKEHEAD_SCHEMA_REGISTRY have."""
_TIMEOUT_S = 10.0


class ConnectionUnavailable(AirflowException):
    """Airflow cannot say now what a connection has, as while its API server or its database is
    away. A later try may succeed.
    """


class LakeheadHook(BaseHook):
    """A cluster: its object store, its brokers, its schema registry.

    :param lakehead_conn_id: the connection. Its host (and port) are the bootstrap servers, its
        login and password those of SASL; its extra has ``path`` (required), and may have
        ``storage``, ``registry_url``, ``registry_user``, ``registry_password``,
        ``security_protocol``, ``sasl_mechanism``, ``ssl_ca_location``.

    Errors of the connection are AirflowFailException: a retry does not help. One that Airflow does
    not return at this moment is ConnectionUnavailable.
    """

    conn_name_attr = "lakehead_conn_id"
    default_conn_name = "lakehead_default"
    conn_type = "lakehead"
    hook_name = "Lakehead"

    def __init__(self, lakehead_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.lakehead_conn_id = lakehead_conn_id

    def get_conn(self) -> "Connection":
        """Return Airflow's connection."""
        return self._connection

    @property
    def path(self) -> str:
        """The URI of the cluster's object store."""
        path = str(self._extra.get("path") or "").strip()
        if not path:
            raise self._wrong(
                'extra has no path: set it to the cluster\'s store, {"path": "s3://bucket/prefix"}'
            )
        return path

    @property
    def bootstrap_servers(self) -> str:
        """The brokers as Kafka clients want them; empty where none are named."""
        host, port = (self._connection.host or "").strip(), self._connection.port
        return f"{host}:{port}" if host and port and ":" not in host else host

    @property
    def registry_url(self) -> str:
        """The schema registry; empty where none is named."""
        return str(self._extra.get("registry_url") or "").strip()

    @property
    def storage_settings(self) -> dict[str, str]:
        """The variables by which the store is reached (AWS_ACCESS_KEY_ID and the like)."""
        given = self._extra.get("storage") or {}
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except ValueError:
                raise self._wrong('storage is not JSON: write {"AWS_REGION": "…"}') from None
        if not isinstance(given, Mapping):
            raise self._wrong('storage is not a JSON object: write {"AWS_REGION": "…"}')
        settings = {}
        for name, value in given.items():
            if not _VARIABLE.fullmatch(str(name)) or isinstance(value, (dict, list)):
                raise self._wrong(f"storage has {name!r}: give variables such as AWS_REGION")
            if value is not None:
                text = settings[str(name)] = _text(value)
                if _SECRET.search(str(name)) and text:
                    mask_secret(text)
                for password in _LOGIN.findall(text):
                    mask_secret(password)
                    mask_secret(unquote(password))
        return settings

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Have the store's variables in this process's environment, and its children's, while a
        block runs.
        """
        settings = self.storage_settings
        kept = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in kept.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def state(self) -> "MetadataImage":
        """Return a snapshot of the cluster's metadata; from the store, not from a broker.

        Raises SettingsError when there is no cluster, StoreUnavailable.
        """
        from lakehead.storage.jobs.cluster import in_cluster
        from lakehead.storage.metadata.log import MetadataLog
        from lakehead.storage.object_store import ObjectStore

        async def look(_: ObjectStore, log: MetadataLog) -> "MetadataImage":
            return log.state

        with self.environment():
            return in_cluster(self.path, "airflow", look)

    def kafka_config(self) -> dict[str, str]:
        """Return how confluent-kafka reaches the brokers."""
        if not self.bootstrap_servers:
            raise self._wrong("names no brokers: set host to broker-1:9092,broker-2:9092")
        connection, extra = self._connection, self._extra
        config = {"bootstrap.servers": self.bootstrap_servers}
        usual = "SASL_SSL" if connection.login else "PLAINTEXT"
        config["security.protocol"] = str(extra.get("security_protocol") or usual)
        if config["security.protocol"].startswith("SASL"):
            config["sasl.mechanism"] = str(extra.get("sasl_mechanism") or "SCRAM-SHA-512")
            config["sasl.username"] = connection.login or ""
            config["sasl.password"] = connection.password or ""
        if location := extra.get("ssl_ca_location"):
            config["ssl.ca.location"] = str(location)
        return config

    def registry_config(self) -> dict[str, str]:
        """Return how confluent-kafka's `SchemaRegistryClient` reaches the registry."""
        from urllib.parse import urlsplit

        extra, url = self._extra, self.registry_url
        if not url:
            raise self._wrong("names no schema registry: set registry_url to http://host:port")
        if not url.startswith(("http://", "https://")):
            raise self._wrong(f"registry_url {url!r} is not a URL: http://host:port")
        if "@" in urlsplit(url).netloc:  # it would be in logs, and on the page of the connection
            raise self._wrong(
                "registry_url has a login in it: set registry_user and registry_password instead"
            )
        config = {"url": url.rstrip("/")}
        if user := str(extra.get("registry_user") or ""):
            config["basic.auth.user.info"] = f"{user}:{extra.get('registry_password') or ''}"
        if location := extra.get("ssl_ca_location"):
            config["ssl.ca.location"] = str(location)
        return config

    def test_connection(self) -> tuple[bool, str]:
        """Send a request to the store, and to the brokers and the registry if they are named.
        Returns whether all responded, and one line with the findings or the error.
        """
        from lakehead.storage.errors import LakeheadError

        try:
            state = self.state()
            found = f"cluster {state.cluster_id} with {len(state.topics)} topics in {self.path}"
            if self.bootstrap_servers:
                found += f"; {self._probe_brokers(state.cluster_id)}"
            if self.registry_url:
                found += f"; {self._probe_registry()}"
        except (AirflowException, LakeheadError) as error:
            return False, " ".join(str(error).split())
        return True, found

    # ------------------------------------------------------------------------------------ inside

    @cached_property
    def _connection(self) -> "Connection":
        try:
            return self.get_connection(self.lakehead_conn_id)
        except (AirflowNotFoundException, AirflowRuntimeError) as error:
            if not _is_missing(self.lakehead_conn_id, error):
                raise ConnectionUnavailable(
                    f"Airflow does not return connection {self.lakehead_conn_id} at this moment: "
                    "its API server or its database is away; a later try may succeed"
                ) from None
            raise AirflowFailException(
                f"there is no connection {self.lakehead_conn_id}: add one of type lakehead (Admin, "
                "Connections; or AIRFLOW_CONN_… in the environment)"
            ) from None

    @cached_property
    def _extra(self) -> dict[str, Any]:
        text = self._connection.extra
        try:
            extra = json.loads(text) if text else {}
        except ValueError:
            raise self._wrong('extra is not JSON: write {"path": "s3://bucket/prefix"}') from None
        if not isinstance(extra, dict):
            raise self._wrong('extra is not a JSON object: write {"path": "s3://bucket/prefix"}')
        return extra

    def _wrong(self, what: str) -> AirflowFailException:
        return AirflowFailException(f"connection {self.lakehead_conn_id}: {what}")

    def _probe_brokers(self, cluster_id: str) -> str:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        config = self.kafka_config()
        try:
            # Its own log lines would go to standard error, beside the response.
            client = AdminClient({**config, "log_level": 0, "socket.timeout.ms": 5000})
            found: Any = client.list_topics(timeout=_TIMEOUT_S)
        except KafkaException as error:
            reason = error.args[0].str() if error.args else "no response"
            raise self._wrong(
                f"brokers {self.bootstrap_servers} do not respond ({reason}): check host, port, "
                "security_protocol, login and password"
            ) from None
        if found.cluster_id != cluster_id:
            raise self._wrong(
                f"brokers {self.bootstrap_servers} serve cluster {found.cluster_id}, and "
                f"{self.path} holds cluster {cluster_id}: set both to the same"
            )
        return f"{len(found.brokers)} brokers at {self.bootstrap_servers}"

    def _probe_registry(self) -> str:
        import ssl
        import urllib.error
        import urllib.request
        from base64 import b64encode

        config = self.registry_config()
        request = urllib.request.Request(f"{config['url']}/subjects")  # noqa: S310 - http or https
        if info := config.get("basic.auth.user.info"):
            request.add_header("Authorization", f"Basic {b64encode(info.encode()).decode()}")
        refused = f"the schema registry at {config['url']} refused the login"
        try:
            trusted = ssl.create_default_context()
            if location := config.get("ssl.ca.location"):
                trusted.load_verify_locations(location)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted) as body:  # noqa: S310
                subjects = json.load(body)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in {401, 403}:
                    raise self._wrong(
                        f"{refused}: check registry_user and registry_password"
                    ) from None
                raise self._not_a_registry(config["url"], error) from None
        except (OSError, ValueError) as error:
            raise self._not_a_registry(config["url"], error) from None
        return f"{len(subjects)} subjects in the registry"

    def _not_a_registry(self, url: str, error: Exception) -> AirflowFailException:
        return self._wrong(
            f"the schema registry at {url} does not respond as one ({error}): check registry_url"
        )


def _is_missing(lakehead_conn_id: str, error: Exception) -> bool:
    """Return whether Airflow says that there is no such connection.

    The SDK takes any failure of its request for a connection that is not there, so that other
    secrets backends are looked at (`ExecutionAPISecretsBackend`). Here the request is sent once
    more, for the kind of its error.
    """
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection

    if isinstance(error, AirflowRuntimeError):  # before Airflow 3.1
        return bool(error.error.error == ErrorType.CONNECTION_NOT_FOUND)
    task_runner = import_module("airflow.sdk.execution_time.task_runner")
    supervisor: Any = getattr(task_runner, "SUPERVISOR_COMMS", None)
    if supervisor is None:  # the process looks into Airflow's database itself
        return True
    try:
        response = supervisor.send(GetConnection(conn_id=lakehead_conn_id))
    except Exception:  # noqa: BLE001 - of the connection to the supervisor, or what it met
        return False
    kind = response.error if isinstance(response, ErrorResponse) else None
    return bool(kind == ErrorType.CONNECTION_NOT_FOUND)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
