"""Terraform as a process: plans that are looked at, and applies of exactly what was looked at.

It runs in a session of its own and writes to a file: should this program be killed, Terraform goes
on to its end and keeps its lock on the state until then. At Ctrl-C or SIGTERM this
program signals Terraform once, and waits: Terraform ends its current work and saves the state.
A Terraform that takes longer than the limit is left to its end, since a kill would lose the state.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakehead.storage.errors import LakeheadError, SettingsError

MAY_END = "LAKEHEAD_MAY_END"
"""The variable that guards of the module read: slots of hosts that may go."""
LOCK_TIMEOUT = "60s"
"""The time that Terraform waits for another run that has the state's lock."""
_POLL_S = 0.1
_STOP_S = 300.0
"""The time that Terraform has after the signal: it stops the waits of its provider."""

Say = Callable[[str], None]


class TerraformFailed(LakeheadError):
    """Terraform failed; the message has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan as a file, and what it says."""

    file: Path
    content: Any


class Terraform:
    """Terraform (or OpenTofu) at a root module. `variables` are options such as -var-file=x; what
    is written goes into `scratch`, since plans hold secrets. An interrupted run has `stop_s`
    seconds for its end.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        scratch: Path,
        variables: Sequence[str] = (),
        *,
        stop_s: float = _STOP_S,
    ) -> None:
        self._program = program
        self._folder = folder
        self._scratch = scratch
        self._variables = tuple(variables)
        self._stop_s = stop_s
        self._runs = 0

    async def plan(self, targets: Sequence[str] = (), *, replaced: Sequence[str] = ()) -> SavedPlan:
        """Return a plan of everything, or of some addresses and what they depend on; what is
        `replaced` is even where nothing of it differs. Raises TerraformFailed, SettingsError.
        """
        file = self._scratch / f"plan-{self._runs}"
        options = (f"-lock-timeout={LOCK_TIMEOUT}", f"-out={file}", *self._variables)
        chosen = [f"-target={one}" for one in targets] + [f"-replace={one}" for one in replaced]
        await self._run("plan", *options, *chosen)
        shown = await self._run("show", str(file), plain=True)
        return SavedPlan(file=file, content=json.loads(shown.read_bytes()))

    async def apply(self, plan: SavedPlan, say: Say, *, may_end: Sequence[str] = ()) -> None:
        """Do what a plan says; Terraform refuses one that is out of date. `say` gets the
        progress; `may_end` are the slots of hosts that guards in the configuration are to let go.
        Raises TerraformFailed.
        """
        arguments = (f"-lock-timeout={LOCK_TIMEOUT}", str(plan.file))
        await self._run("apply", *arguments, say=say, may_end=may_end)

    async def _run(
        self,
        command: str,
        *arguments: str,
        plain: bool = False,
        say: Say | None = None,
        may_end: Sequence[str] = (),
    ) -> Path:
        self._runs += 1
        log = self._scratch / f"{self._runs}-{command}"
        options = ("-json",) if plain else ("-json", "-input=false")
        process = self._started(log, (command, *options, *arguments), may_end)
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(_report(log, say)) if say else None
            status = await _end(process, self._stop_s)
            if reporting:
                reporting.cancel()
        if status is None:
            raise TerraformFailed(
                f"terraform {command} was interrupted and has not ended after {self._stop_s:g} s: "
                f"process {process.pid} continues, and has the lock of the state until its end"
            )
        if status:
            raise TerraformFailed(f"terraform {command} failed: {_reason(log)}")
        return log

    def _started(
        self, log: Path, arguments: Sequence[str], may_end: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        """Start it. A process of asyncio's would be killed with the event loop."""
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            try:
                return subprocess.Popen(
                    (self._program, *arguments),
                    cwd=self._folder,
                    env=os.environ | {"TF_IN_AUTOMATION": "1", MAY_END: " ".join(may_end)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise SettingsError(
                    f"{error.filename}: not found: install Terraform, or name it with "
                    "--terraform; the folder of the root module is the argument"
                ) from None


async def _end(process: subprocess.Popen[bytes], stop_s: float) -> int | None:
    """Return the status of a process; None: it was interrupted and still runs."""
    try:
        return await _status(process)
    except asyncio.CancelledError:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(_status(process), stop_s)
        except TimeoutError:
            return None
        raise


async def _status(process: subprocess.Popen[bytes]) -> int:
    while (status := process.poll()) is None:  # noqa: ASYNC110 - a process sets no event
        await asyncio.sleep(_POLL_S)
    return status


async def _report(log: Path, say: Say) -> None:
    """Report at intervals the resources that Terraform works on."""
    seen = 0
    while True:
        lines = [line for line in _lines(log) if str(line.get("type")).startswith("apply_")]
        messages = [str(line.get("@message")) for line in lines]
        if len(messages) > seen:
            seen = len(messages)
            say(messages[-1])
        await asyncio.sleep(_POLL_S)


def _reason(log: Path) -> str:
    """Return the errors that Terraform named, without its frames."""
    found = [
        f"{line['diagnostic'].get('summary', '')}: {line['diagnostic'].get('detail', '')}"
        for line in _lines(log)
        if line.get("@level") == "error" and "diagnostic" in line
    ]
    said = log.with_suffix(".err").read_text(errors="replace")
    return "; ".join(found) or said.strip() or log.read_text(errors="replace")[-500:]


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    for text in log.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut off, or not Terraform's
        if isinstance(line, dict):
            yield line
