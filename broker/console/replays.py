"""Replays of dead letters that viewers have started: the command `lakehead replay-dead-letters`, in
a process of its own.

A table has one writer at a time. The command requests the lease of its topic, and the process that
keeps tables hands it over.
"""

import asyncio
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from lakehead.broker.maintenance.beside import environment
from lakehead.broker.observability.observed_node import ObservedNode

RUN_S_MAX = 900.0
"""A replay that takes longer is killed: what it has committed stays, and another one goes on."""
_KEPT_MAX = 20
_WORDS_MAX = 2000
_log = structlog.get_logger("broker.console")


@dataclass(slots=True, kw_only=True)
class Replay:
    """A replay, or with `is_dry_run` its plan. `fields` are the result, `problem` is the reason
    that there is none.
    """

    table: str
    user: str
    begun: int
    is_dry_run: bool
    is_running: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class Replays:
    """The last replays by table, one at a time. All of this belongs to the event loop."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        self._last: OrderedDict[str, Replay] = OrderedDict()
        self._is_running = False

    async def last(self, table: str) -> Replay | None:
        """Return the last replay of a table; None if this node has not started one."""
        return self._last.get(table)

    async def run(self, table: str, user: str, *, is_dry_run: bool) -> None:
        """Replay the dead letters of a table, or count those that can be rows. Does nothing while
        another replay runs.
        """
        if self._is_running:
            return
        begun = self._node.clock.now_ms()
        replay = Replay(table=table, user=user, begun=begun, is_dry_run=is_dry_run)
        self._last[table] = replay
        self._last.move_to_end(table)
        while len(self._last) > _KEPT_MAX:
            self._last.popitem(last=False)
        self._is_running = True
        try:
            await self._run(replay)
        except TimeoutError:
            replay.problem = f"it was stopped after {RUN_S_MAX:.0f} s: start it again"
        except (OSError, ValueError) as error:
            replay.problem = str(error)
        finally:
            replay.is_running = self._is_running = False
            _log.info(
                "dead_letters_replayed",
                table=table,
                user=user,
                dry_run=is_dry_run,
                problem=replay.problem,
                **{name: one for name, one in replay.fields.items() if isinstance(one, int)},
            )

    async def _run(self, replay: Replay) -> None:
        process = await self._started(replay)
        try:
            async with asyncio.timeout(RUN_S_MAX):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()  # it may be killed anywhere
                await process.wait()
        if process.returncode == 0:
            replay.fields = json.loads(out)
        else:
            lines = err.decode(errors="replace").strip().splitlines()
            words = lines[-1] if lines else ""  # those before are of the wait for the lease
            replay.problem = words[-_WORDS_MAX:] or f"it ended with status {process.returncode}"

    async def _started(self, replay: Replay) -> asyncio.subprocess.Process:
        settings = self._node.services.settings
        flags = ["--dry-run"] if replay.is_dry_run else []
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lakehead", "replay-dead-letters", "--json", *flags),
            *("--path", settings.store_address, "--", replay.table),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment(settings), "NO_COLOR": "1"},
            start_new_session=True,  # Ctrl-C is the node's
        )
