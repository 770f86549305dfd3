"""The rolling update itself: one step after the other, each looked at before it is done.

Nothing is kept between runs. Terraform's next plan has the work that is left, and the cluster's
metadata decides each time if a host may go. The next run therefore continues a run that was stopped
anywhere, and begins with the host that is down or drained already.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lakehead.broker.cli.rolling.host_plan import (
    Action,
    Host,
    HostPlan,
    Step,
    plan_steps,
    read_plan,
    strays,
)
from lakehead.broker.cli.rolling.host_state import Expected, PauseWatch, amiss, nodes_of
from lakehead.broker.cli.rolling.members import Members
from lakehead.broker.cli.rolling.terraform import SavedPlan, Say, Terraform
from lakehead.storage.errors import LakeheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The time of a step, in seconds, and the longest time that a partition was seen offline."""

    action: Action
    slots: tuple[str, ...]
    drain_s: float
    apply_s: float
    back_s: float
    pause_s: float


class Conductor:
    """Carries out a plan of all, `plan`, whose hosts are instances of `resource`. A resource
    that keeps data is deleted only if it is `named`, by its address. `say` gets the progress, and
    `note` the lines of the report. Raises LakeheadError with the failure and its remedy.
    """

    def __init__(
        self,
        terraform: Terraform,
        members: Members,
        plan: HostPlan,
        *,
        resource: str,
        named: Collection[str] = (),
        say: Say,
        note: Say,
    ) -> None:
        self._terraform = terraform
        self._members = members
        self._plan = plan
        self._resource = resource
        self._named = frozenset(named)
        self._say = say
        self._note = note
        self._others = {
            change.slot: Expected(host=plan.then[change.slot], is_settled=change.is_idle)
            for change in plan.changes
            if change.slot in plan.then and change.actions != ("create",)
        }

    def steps(self) -> list[Step]:
        """Return what there is to do, in order."""
        state = self._members.state
        ours = {slot: Expected(host=e.host, is_settled=False) for slot, e in self._others.items()}
        down = (slot for slot, expected in ours.items() if amiss(state, expected))
        return plan_steps(self._plan, down=frozenset(down))

    async def run(self, done: list[StepTimes]) -> None:
        """Do all steps; what each took is in `done` as soon as it is."""
        finish = Step(action=Action.FINISH)
        for step in self.steps():
            if step.action is Action.FINISH:
                finish = step
                continue
            async with self._explained(step):
                figures = await self._do(step)
            done += [figures] if figures else []
        await self._members.wait_well(self._others, ())
        figures = await self._finish(finish)
        done += [figures] if figures else []

    async def _do(self, step: Step) -> StepTimes | None:
        """Do a step; None: nothing was left of it."""
        saved = await self._planned(step)
        if saved is None:
            return None
        known = self._plan.now if step.action is Action.REMOVE else self._plan.then
        hosts = [known[slot] for slot in step.slots]
        self._members.pauses = PauseWatch()
        times = [time.monotonic()]
        if step.action in {Action.REMOVE, Action.REPLACE}:
            await self._drain(step, hosts)
        times.append(time.monotonic())
        going = step.slots if step.action is Action.REMOVE else ()
        await self._terraform.apply(saved, self._say, may_end=going)
        times.append(time.monotonic())
        await self._settle(step, hosts)
        times.append(time.monotonic())
        drain_s, apply_s, back_s = (after - before for before, after in itertools.pairwise(times))
        return StepTimes(
            action=step.action,
            slots=step.slots,
            drain_s=drain_s,
            apply_s=apply_s,
            back_s=back_s,
            pause_s=self._members.pauses.longest_s,
        )

    async def _planned(self, step: Step) -> SavedPlan | None:
        """Return the plan of a step; None: nothing is left of it."""
        saved = await self._terraform.plan(step.targets)
        content = read_plan(saved.content, self._resource)
        outdated = [one for one in content.outdated(self._plan.then) if one in step.targets]
        if outdated and step.action is Action.REPLACE:
            saved = await self._terraform.plan(step.targets, replaced=outdated)
            content = read_plan(saved.content, self._resource)
        if beyond := strays(step, content, self._named):
            raise LakeheadError(
                f"Terraform would also change {'; '.join(beyond)}, which is not of this step: "
                "apply that by itself first, with terraform apply -target"
            )
        return saved if content.pending else None

    async def _drain(self, step: Step, hosts: Sequence[Host]) -> None:
        slots = ", ".join(step.slots)
        self._say(f"{slots}: waiting for the other hosts to be well")
        await self._members.wait_well(self._others, hosts)
        self._say(f"{slots}: draining")
        await self._members.drain(self._others, hosts)
        if step.action is Action.REMOVE:
            await self._members.wait_expendable(hosts)
        self._members.check_drained(hosts)

    async def _settle(self, step: Step, hosts: Sequence[Host]) -> None:
        if step.action is Action.REMOVE:
            self._say(f"{', '.join(step.slots)}: waiting for its nodes to be gone")
            await self._members.forget(hosts)
            return
        for host in hosts:
            self._others[host.slot] = Expected(host=host)
            self._say(f"{host.slot}: waiting for its nodes")
            await self._members.wait_back(self._others[host.slot])

    async def _finish(self, step: Step) -> StepTimes | None:
        """Apply the rest, if it changes no host and deletes only what the plan showed; the plan
        after it is empty.
        """
        self._say("looking at what is left")
        saved = await self._terraform.plan()
        left = read_plan(saved.content, self._resource)
        if not (left.pending or left.changes_outputs):
            return None
        began = time.monotonic()
        if not strays(step, left, self._named):
            await self._terraform.apply(saved, self._say)
            left = read_plan((await self._terraform.plan()).content, self._resource)
        if left.pending:
            words = "; ".join(change.words for change in left.pending)
            raise LakeheadError(
                f"the hosts are done, and this is left for terraform apply: {words}"
            )
        return StepTimes(
            action=Action.FINISH,
            slots=(),
            drain_s=0.0,
            apply_s=time.monotonic() - began,
            back_s=0.0,
            pause_s=0.0,
        )

    @asynccontextmanager
    async def _explained(self, step: Step) -> AsyncIterator[None]:
        """Say with an error, or an end from outside, where it happened and how things stand. After
        an error, nodes that still run are not left drained.
        """
        name = ", ".join(step.slots) or step.action.value
        try:
            yield
        except LakeheadError as error:
            await self._members.relent([host for host in self._hosts() if host.slot in step.slots])
            line = (
                f"{name}: {str(error).rstrip('.')}.{self._drained()} Run this again once it is well"
            )
            raise LakeheadError(line) from error
        except asyncio.CancelledError:
            self._note(f"{name}: stopped.{self._drained()} Run this again to go on.")
            raise

    def _hosts(self) -> list[Host]:
        return [*self._plan.now.values(), *self._plan.then.values()]

    def _drained(self) -> str:
        state = self._members.state
        nodes = [n for n in nodes_of(state, self._hosts()) if n.is_draining and not n.is_fenced]
        ids = ", ".join(str(node.node_id) for node in nodes)
        return f" Drained stay: node {ids} (lakehead drain NODE --undo)." if ids else ""
