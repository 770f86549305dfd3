"""The nodes of a cluster by host: drained, waited for, forgotten.

The metadata alone decide what a run may do with a host. The one decision is to drain it: an entry
of the metadata log that is refused unless all other hosts are well. Of two runs at once one drains
its host, and the other is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from lakehead.broker.cli.nodes import POLL_S, nudge_nodes
from lakehead.broker.cli.rolling.host_plan import Host
from lakehead.broker.cli.rolling.host_state import (
    Expected,
    HostDown,
    PauseWatch,
    ReadyWatch,
    amiss,
    drains,
    held,
    leading,
    nodes_of,
    not_gone,
    unwell,
)
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DrainNode, Record, RetireNode
from lakehead.storage.metadata.state import MetadataImage

Others = Mapping[str, Expected]


MinReadyOption = Annotated[
    float,
    typer.Option(
        "--min-ready",
        metavar="SECONDS",
        help="A node is back once it has served for that long without a restart.",
        min=0,
    ),
]
MIN_READY_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The seconds to wait for anything at most, and to see a node serve before it is back."""

    timeout_s: float
    min_ready_s: float


class Members:
    """Works on the metadata log. `follow` has to run while anything is waited for. Everything
    raises HostDown, with what is amiss.
    """

    def __init__(self, log: MetadataLog, waits: Waits) -> None:
        self._log = log
        self._timeout_s = waits.timeout_s
        self._min_ready_s = waits.min_ready_s
        self._trouble = ""
        self.pauses = PauseWatch()

    @property
    def state(self) -> MetadataImage:
        """Return the newest state that is known."""
        return self._log.state

    async def follow(self) -> None:
        """Read the log again and again; repeat a request that the store fails."""
        while True:
            try:
                self.pauses.look(await self._log.refresh(), time.monotonic())
                self._trouble = ""
            except StorageError as error:
                self._trouble = f" ({error})"
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Members]:
        """Follow the log as long as the context lasts."""
        task = asyncio.create_task(self.follow())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def wait_well(self, others: Others, touched: Collection[Host]) -> None:
        """Wait until all hosts but those touched serve, and every partition of theirs is led."""
        await self._until(lambda: unwell(self.state, others, touched))

    async def drain(self, others: Others, touched: Collection[Host]) -> None:
        """Have the nodes of some hosts lead nothing; return once they do."""
        state = await self._log.commit_with(lambda state: drains(state, others, touched))
        await nudge_nodes(state)
        await self._until(lambda: leading(self.state, touched))

    def check_drained(self, touched: Collection[Host]) -> None:
        """Raise if a node of these hosts leads anything, or may again."""
        if why := leading(self.state, touched):
            raise HostDown(why)

    async def wait_expendable(self, touched: Collection[Host]) -> None:
        """Wait until drained hosts hold nothing that is not elsewhere too."""
        await self._until(lambda: held(self.state, touched))

    async def wait_newer(self, host: Host, before: Mapping[int, int]) -> None:
        """Wait until all nodes of a host serve in an epoch after those of `before`."""
        ready = ReadyWatch(self._min_ready_s)

        def why_not() -> str:
            why = amiss(self.state, Expected(host=host))
            nodes = nodes_of(self.state, [host])
            mine = [node for node in nodes if node.node_id in host.node_ids]
            if not why:
                old = [node for node in mine if node.epoch <= before.get(node.node_id, -1)]
                why = f"node {old[0].node_id} has not started again" if old else ""
            return ready.amiss(mine, why, time.monotonic())

        await self._until(why_not)

    async def wait_back(self, expected: Expected) -> None:
        """Wait until a host serves, may lead, and every partition is led.

        A node that was changed without a restart responds under its epoch, and its drain is taken
        back. If no node at all responds here, the metadata decides.
        """
        responding: set[int] = set()
        ready = ReadyWatch(self._min_ready_s)

        def why_not() -> str:
            nodes = nodes_of(self.state, [expected.host])
            why = amiss(self.state, expected) or unwell(self.state, {})
            if not why:
                ids = {node.node_id for node in nodes if not node.is_fenced}
                silent = sorted(ids - responding if responding else ())
                why = f"node {silent[0]} of {expected.host.slot} does not respond" if silent else ""
            return ready.amiss(nodes, why, time.monotonic())

        async def look() -> str:
            responding.clear()
            responding.update(await nudge_nodes(self.state) or {})
            await self._end_drains([expected.host], responding)
            return why_not()

        try:
            async with asyncio.timeout(self._timeout_s):
                while await look():  # noqa: ASYNC110 - it sends requests to nodes
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise self._late(why_not()) from None

    async def relent(self, touched: Collection[Host]) -> None:
        """End the drain of nodes that were left as they were: those that respond. If that fails,
        they stay drained.
        """
        try:
            await self._end_drains(touched, await nudge_nodes(self.state) or {})
        except StorageError as error:
            self._trouble = f" ({error})"

    async def _end_drains(self, touched: Collection[Host], responding: Collection[int]) -> None:
        def plan(state: MetadataImage) -> Sequence[Record]:
            return [
                DrainNode(node_id=node.node_id, epoch=node.epoch, is_draining=False)
                for node in nodes_of(state, touched)
                if node.is_draining and not node.is_fenced and node.node_id in responding
            ]

        if plan(self.state):
            await nudge_nodes(await self._log.commit_with(plan))

    async def forget(self, hosts: Collection[Host]) -> list[int]:
        """Unregister the nodes of hosts that are gone, once they are fenced; return their ids."""
        forgotten: list[int] = []

        def plan(state: MetadataImage) -> Sequence[Record]:
            if why := not_gone(state, hosts):
                raise HostDown(why)
            forgotten[:] = [node.node_id for node in nodes_of(state, hosts)]
            return [RetireNode(node_id=node_id) for node_id in forgotten]

        await self._until(lambda: not_gone(self.state, hosts))
        await self._log.commit_with(plan)
        return forgotten

    async def _until(self, why_not: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while why_not():  # noqa: ASYNC110 - `follow` reads
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise self._late(why_not()) from None

    def _late(self, why: str) -> HostDown:
        waited = f"waited for {self._timeout_s:.0f} s{self._trouble}"
        return HostDown(f"{why or 'it was well too late'}; {waited}")
