"""`lakehead support`: one file for a report of a problem, without secrets and without records."""

import base64
import dataclasses
import http.client
import io
import json
import os
import platform
import re
import ssl
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    ConfigOption,
    PathOption,
    open_cluster,
    read_state,
    run,
    store_uri,
)
from lakehead.broker.cli.inspection.metadata import state_summary
from lakehead.broker.cli.node_network import CommandConfigOption, client_tls
from lakehead.broker.cli.nodes import nudge_nodes
from lakehead.broker.cluster.node_status import node_rows
from lakehead.broker.configs.entries import is_secret_config
from lakehead.broker.diagnosis.cluster import judge_cluster
from lakehead.broker.diagnosis.machine import read_machine
from lakehead.broker.diagnosis.metadata_log import newest_entries
from lakehead.broker.diagnosis.redaction import Redaction, secret_variables
from lakehead.broker.security.private_file import write_private_file
from lakehead.broker.setting_sources import SETTINGS, load
from lakehead.installation import VERSION
from lakehead.storage.clock import SystemClock
from lakehead.storage.config_providers import Secret
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.hidden_fields import HIDDEN
from lakehead.storage.metadata.state import MetadataImage

_ENTRIES = 200
_LOG_TAIL = 4 << 20
_PAGE_MAX = 16 << 20
_PAGE_TIMEOUT_S = 10.0
_PAGES = ("health", "metrics")


def support(
    path: PathOption = DEFAULT_PATH,
    config: ConfigOption = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="A node's metrics address (http://host:9464, https://user:password@host:9464): "
            "adds its health and metrics. May be repeated.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="A node's log: adds its end. May be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write (.tar.gz)."),
    ] = None,
    command_config: CommandConfigOption = None,
) -> None:
    """Write a file for a report of a problem.

    It has state, settings and versions.

    It has no secret and no record: passwords, keys and tokens are hidden. It has names of topics,
    groups, users and hosts, so look at it before you pass it on. Only its owner can read it.
    """
    now_ms = SystemClock().now_ms()
    target = output or Path(f"lakehead-support-{now_ms // 1000}.tar.gz")
    if target.exists():
        raise SettingsError(f"{target} exists: give another name with --output")
    if not target.absolute().parent.is_dir():
        raise SettingsError(f"cannot write {target}: there is no folder {target.parent}")
    settings, secrets = _settings(config)
    files = {
        "versions.json": _json(_versions()),
        "machine.json": _json(dataclasses.asdict(read_machine())),
        "settings.json": _json(settings),
        **run(_cluster(path)),
        **_pages(metrics or [], command_config),
        **{f"logs/{number}-{one.name}": _tail(one) for number, one in enumerate(log or [])},
    }
    redaction = Redaction([*secrets, *secret_variables(os.environ)])
    files = {name: redaction.hidden(body) for name, body in files.items()}
    write_private_file(target, _archive(files, now_ms // 1000))
    typer.echo(f"wrote {target}: {', '.join(sorted(files))}")


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, default=str).encode()


def _versions() -> dict[str, Any]:
    return {
        "lakehead": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {
            found.metadata["Name"]: found.version
            for found in sorted(distributions(), key=lambda one: str(one.metadata["Name"]).lower())
        },
    }


def _settings(config: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that differ from their defaults, without secrets, and the secrets."""
    try:
        settings = load({}, os.environ, config)
    except SettingsError as error:
        return {"error": str(error)}, []
    found: dict[str, Any] = {}
    secrets: list[str] = []
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        if value == setting.default:
            continue
        is_hidden = setting.is_secret or isinstance(value, Secret)
        found[setting.name] = HIDDEN if is_hidden else value
        if is_hidden:
            # Some hold several: name:password,name:password
            secrets += [str(value), *re.split(r"[,:;=\s\"]+", str(value))]
    return found, secrets


async def _cluster(path: str) -> dict[str, bytes]:
    """Return what the metadata say, or why they cannot be read."""
    store = open_cluster(path)
    try:
        state = await read_state(store)
        entries = await newest_entries(store, _ENTRIES)
    except LakeheadError as error:
        return {"cluster-error.txt": str(error).encode()}
    finally:
        await store.close()
    responses = await nudge_nodes(state)
    responding = None if responses is None else responses.keys()
    findings = [dataclasses.asdict(one) for one in judge_cluster(state, responding)]
    return {
        "cluster.json": _json({"store": store_uri(path), **state_summary(state)}),
        "nodes.json": _json(node_rows(state, responses)),
        "findings.json": _json(findings),
        "topics.json": _json(_topics(state)),
        "tables.json": _json(
            {name: dataclasses.asdict(table) for name, table in sorted(state.tables.items())}
        ),
        "metadata-log.jsonl": b"\n".join(entries),
    }


def _topics(state: MetadataImage) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "id": topic.topic_id,
            "configs": _without_secrets(topic.configs),
            "partitions": [
                _partition(state, stream_id)
                for stream_id in topic.partitions
                if stream_id in state.streams
            ],
        }
        for name, topic in sorted(state.topics.items())
    ]


def _without_secrets(configs: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret_config(name) else value for name, value in configs.items()}


def _partition(state: MetadataImage, stream_id: int) -> dict[str, Any]:
    stream = state.streams[stream_id]
    return {
        "partition": stream.partition,
        "stream": stream_id,
        "leader": stream.node_id if stream.is_open else None,
        "epoch": stream.epoch,
        "assigned": stream.assigned,
        "start_offset": stream.start_offset,
        "end_offset": stream.end_offset,
        "extents": len(stream.extents),
    }


def _pages(addresses: list[str], config: str | None) -> dict[str, bytes]:
    context = client_tls(Path(config)) if config else None
    found = {}
    for number, address in enumerate(addresses):
        for page in _PAGES:
            found[f"pages/{number}-{page}.txt"] = _page(f"{address.rstrip('/')}/{page}", context)
    return found


def _page(url: str, context: ssl.SSLContext | None) -> bytes:
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    if scheme not in ("http", "https") or not place.split("/")[0]:
        raise SettingsError(
            f"--metrics: {scheme}://{place} is not an address like http://host:9464"
        )
    request = urllib.request.Request(f"{scheme}://{place}")  # noqa: S310 - see above
    if login:
        token = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(  # noqa: S310 - see above
            request, timeout=_PAGE_TIMEOUT_S, context=context if scheme == "https" else None
        ) as response:
            return bytes(response.read(_PAGE_MAX))
    except urllib.error.HTTPError as error:
        body = bytes(error.read(_PAGE_MAX))  # a health page that reports trouble has status 503
        return body or f"{scheme}://{place}: {error}".encode()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{scheme}://{place}: {error}".encode()


def _tail(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(max(file.stat().st_size - _LOG_TAIL, 0))
            return opened.read(_LOG_TAIL)
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None


def _archive(files: Mapping[str, bytes], time_s: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, body in sorted(files.items()):
            entry = tarfile.TarInfo(f"lakehead-support/{name}")
            entry.size, entry.mtime, entry.mode = len(body), time_s, 0o600
            archive.addfile(entry, io.BytesIO(body))
    return buffer.getvalue()
