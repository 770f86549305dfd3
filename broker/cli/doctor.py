"""`lakehead doctor`: look at everything that a node of given settings needs, and advise."""

import asyncio
import os
import platform
import random
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import read_state, run
from lakehead.broker.cli.extras import EXTRAS
from lakehead.broker.cli.listing import show_rows
from lakehead.broker.cli.nodes import Responses, nudge_nodes
from lakehead.broker.cli.progress import waiting
from lakehead.broker.cli.setting_flags import command_with_setting_flags
from lakehead.broker.diagnosis.certificates import judge_certificates
from lakehead.broker.diagnosis.cluster import judge_cluster
from lakehead.broker.diagnosis.finding import Finding, Verdict, failed, has_failed, ok, warning
from lakehead.broker.diagnosis.log_volume import judge_log
from lakehead.broker.diagnosis.machine import (
    judge_disk,
    judge_listeners,
    judge_machine,
    read_machine,
)
from lakehead.broker.diagnosis.store import try_store
from lakehead.broker.network.listeners import Listeners
from lakehead.broker.setting_sources import check_flags, load, unknown_variables, without_effect
from lakehead.broker.settings import Settings
from lakehead.installation import VERSION
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import open_retrying_store, open_store

_CLUSTER_TIMEOUT_S = 30.0
_STORE_TIMEOUT_S = 30.0
_COLUMNS = {"check": "CHECK", "verdict": "VERDICT", "found": "FOUND", "advice": "ADVICE"}
_HELP = """\
Check all that a node needs, and say what to change.

Status 1 if a node would not start, or if data is in danger.

Takes the flags, environment and file of `lakehead start`. It looks at the settings, the \
versions, the machine (memory, open files, room for the log, latency of durable writes, \
addresses), the object store (permissions, conditional puts, consistency, latency, clock), and the \
cluster in it (nodes, partitions, recovery, tables, feature level). It starts nothing. It writes \
small objects below check/ in the store and a file beside the log, and deletes them.
"""


def _doctor(flags: Mapping[str, str | None], config: str | None, *, as_json: bool = False) -> None:
    findings = [*_versions(), *_settings_findings(config)]
    try:
        check_flags(flags)
        settings = load(flags, os.environ, config)
        listeners = Listeners(settings)
        settings.encryption  # noqa: B018 - raises SettingsError
    except SettingsError as error:
        findings.append(failed("settings", str(error), "lakehead settings list has every setting"))
    else:
        findings.append(ok("settings", "can be read"))
        findings += judge_machine(read_machine(), settings)
        findings += judge_listeners(listeners.all.values())
        now_ms = SystemClock().now_ms()
        findings += judge_certificates(listeners.all.values(), settings, now_ms)
        findings += _log_findings(settings)
        with waiting("trying the object store"):
            findings += run(_store_findings(settings))
    rows = [_row(finding) for finding in findings]
    if not as_json:
        for row in rows:
            row["verdict"] = row["verdict"].upper() if row["verdict"] != Verdict.OK else "ok"
    show_rows(rows, _COLUMNS, as_json)
    if has_failed(findings):
        raise typer.Exit(1)


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "verdict": finding.verdict.value,
        "found": finding.found,
        "advice": finding.advice,
    }


def _versions() -> list[Finding]:
    found = f"Lakehead {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    extras = [
        extra
        for extra, packages in EXTRAS.items()
        if packages and all(find_spec(package) is not None for package in packages)
    ]
    findings = [ok("versions", found), ok("extras", ", ".join(sorted(extras)) or "none")]
    if "lake" in extras:
        from lakehead.lake.spark import check_java

        try:
            findings.append(ok("Java", f"{check_java()}"))
        except SettingsError as error:
            findings.append(warning("Java", "not found, or too old", str(error)))
    return findings


def _settings_findings(config: str | None) -> list[Finding]:
    findings = [
        warning("environment", line, "correct its name, or unset it")
        for line in unknown_variables(os.environ)
    ]
    try:
        ignored = without_effect(config)
    except SettingsError:
        return findings  # the reading of all settings reports it
    if ignored:
        found = f"without effect here: {', '.join(ignored)}"
        findings.append(warning("settings", found, "docs/kafka-compatibility.md says why"))
    return findings


def _log_findings(settings: Settings) -> list[Finding]:
    try:
        return judge_log(settings.wal_uri, clock=SystemClock())
    except SettingsError as error:
        return [failed("write-ahead log", str(error), "lakehead start --help, at --wal")]


async def _store_findings(settings: Settings) -> list[Finding]:
    place = settings.store_uri
    if place.startswith("file:") and not (Path(place.removeprefix("file:")) / "meta").is_dir():
        return [ok("object store", f"{place}: made at the first start")]
    try:
        store = open_store(place)
    except SettingsError as error:
        return [failed("object store", str(error), "lakehead start --help, at --store")]
    try:
        async with asyncio.timeout(_STORE_TIMEOUT_S):
            findings = await try_store(store, clock=SystemClock(), rng=random.SystemRandom())
    except TimeoutError:
        found = f"{place} did not respond to all requests within {_STORE_TIMEOUT_S:.0f} s"
        return [failed("object store", found, "look at the store's own state, and at the network")]
    finally:
        await store.close()
    if place.startswith("file:"):
        findings += judge_disk(Path(place.removeprefix("file:")))
    if has_failed(findings):
        return findings
    return [*findings, *await _cluster_findings(settings)]


async def _cluster_findings(settings: Settings) -> list[Finding]:
    store = open_retrying_store(settings.store_address, rng=random.SystemRandom())
    try:
        if not await store.list("meta/"):
            return [ok("cluster", "none yet: the first start makes one")]
        async with asyncio.timeout(_CLUSTER_TIMEOUT_S):
            state = await read_state(store)
            responses = await _responses(state, settings)
    except (LakeheadError, TimeoutError) as error:
        reason = str(error) or f"its metadata took more than {_CLUSTER_TIMEOUT_S:.0f} s"
        return [failed("cluster", reason, "lakehead verify reads all of it")]
    finally:
        await store.close()
    responding = None if responses is None else responses.keys()
    return [ok("cluster", state.cluster_id), *judge_cluster(state, responding)]


async def _responses(state: MetadataImage, settings: Settings) -> Responses | None:
    try:
        return await nudge_nodes(state, settings)
    except SettingsError:
        return None  # its certificates are judged above


doctor = command_with_setting_flags(
    _doctor,
    help_text=_HELP,
    as_json=Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")],
)
