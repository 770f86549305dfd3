"""A supervisor over simulated processes, in virtual time: they die, hang, refuse, at any moment."""

import asyncio
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lakehead.broker.supervisor.placement import NodeCommand
from lakehead.broker.supervisor.supervisor import (
    ENDING_S,
    FAILURES_MAX,
    FENCED,
    FIRST_S,
    LONGEST_S,
    UNAVAILABLE,
    Life,
    NodeNotStarted,
    NodeNotStopped,
    Phase,
    Supervisor,
)
from lakehead.storage.tasks import TaskScope
from tests.simulation.loop import LoopClock, simulate

STOP_TIMEOUT_S = 20.0
FOR_EVER = float("inf")
FIRST_PORT = 9000


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """What a life is like, in seconds. `lasts_s` is counted from when it is ready."""

    starts_s: float = 1.0
    is_refused: bool = False
    refusal: int = 1
    """Its exit status then."""
    lasts_s: float = FOR_EVER
    stops_s: float = 0.5
    stuck_s: float = 0.0
    """From its end until the kernel lets go of it; its connections and output have ended before."""
    is_silent: bool = True
    """True if its output ends with it, and not with the kernel's word."""


class SimulatedLife:
    """A process of a machine that exists in virtual time only."""

    def __init__(self, pid: int, behaviour: Behaviour, on_end: Callable[[], None]) -> None:
        self.pid = pid
        self._behaviour = behaviour
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[str | None] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._ending: asyncio.Future[None] = self._loop.create_future()
        self._on_end = on_end
        self._is_over = False
        self._loop.call_later(behaviour.starts_s, self._started)

    async def wait_ready(self) -> str | None:
        return await asyncio.shield(self._ready)

    async def wait_ending(self) -> None:
        await asyncio.shield(self._ending)

    async def wait_ended(self) -> int:
        return await asyncio.shield(self._ended)

    def stop(self) -> None:
        if self._behaviour.stops_s < FOR_EVER:
            self._loop.call_later(self._behaviour.stops_s, self._end, 0)

    def kill(self) -> None:
        self._end(-9)

    def _started(self) -> None:
        if self._behaviour.is_refused:
            self._end(self._behaviour.refusal)
        elif not self._is_over:
            self._ready.set_result(f"127.0.0.1:{FIRST_PORT + self.pid}")
            if self._behaviour.lasts_s < FOR_EVER:
                self._loop.call_later(self._behaviour.lasts_s, self._end, -9)

    def _end(self, status: int) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._behaviour.is_silent:
            self._let_go()
        if self._behaviour.stuck_s == 0:
            self._reap(status)
        elif self._behaviour.stuck_s < FOR_EVER:
            self._loop.call_later(self._behaviour.stuck_s, self._reap, status)

    def _let_go(self) -> None:
        if not self._ending.done():
            self._ending.set_result(None)
        if not self._ready.done():
            self._ready.set_result(None)

    def _reap(self, status: int) -> None:
        self._let_go()
        self._ended.set_result(status)
        self._on_end()


@dataclass(slots=True, kw_only=True)
class Machine:
    """Launches lives. `plan` gives a node's lives in order; after them, they are good ones."""

    nodes: int = 3
    plan: dict[int, list[Behaviour | OSError]] = field(default_factory=dict)
    launches: list[tuple[float, int]] = field(default_factory=list)
    running: dict[int, SimulatedLife] = field(default_factory=dict)
    down_most: int = 0
    ports: dict[int, list[str]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """What was said of this machine's health."""

    async def launch(self, command: NodeCommand) -> Life:
        node_id = int(command.node_id)
        await asyncio.sleep(0)  # a fork takes a moment
        assert node_id not in self.running, "two processes of one node"
        self.launches.append((asyncio.get_running_loop().time(), node_id))
        self.ports.setdefault(node_id, []).append(command.arguments[-1])
        lives = self.plan.get(node_id, [])
        behaviour = lives.pop(0) if lives else Behaviour()
        if isinstance(behaviour, OSError):
            raise behaviour
        life = SimulatedLife(len(self.launches) - 1, behaviour, lambda: self._ended(node_id))
        self.running[node_id] = life
        return life

    def _ended(self, node_id: int) -> None:
        del self.running[node_id]
        self.down_most = max(self.down_most, self.nodes - len(self.running))

    def supervisor(self) -> tuple[Supervisor, TaskScope]:
        def crashed(name: str, error: BaseException) -> None:
            raise AssertionError(name) from error

        scope = TaskScope(crashed)
        commands = [NodeCommand(node_id=n, arguments=("start",)) for n in range(self.nodes)]
        clock = LoopClock(asyncio.get_running_loop())
        supervisor = Supervisor(
            commands,
            self.launch,
            clock,
            scope,
            stop_timeout_s=STOP_TIMEOUT_S,
            on_unhealthy=self.complaints.append,
        )
        return supervisor, scope


def test_nodes_start_together_and_stop_together() -> None:
    async def world() -> None:
        machine = Machine()
        supervisor, scope = machine.supervisor()
        assert len(await supervisor.start()) == 3
        assert asyncio.get_running_loop().time() < 1.5
        await supervisor.stop()
        assert not machine.running
        assert asyncio.get_running_loop().time() < 2.5
        await scope.close()

    simulate(world, seed=1)


@pytest.mark.parametrize("status", [1, UNAVAILABLE])
def test_a_machine_that_starts_no_node_is_unhealthy_unless_the_store_is(status: int) -> None:
    async def world() -> None:
        machine = Machine(plan={1: [Behaviour(is_refused=True, refusal=status)]})
        supervisor, scope = machine.supervisor()
        with pytest.raises(NodeNotStarted):
            await supervisor.start()
        assert bool(machine.complaints) is (status == 1)
        await scope.close()

    simulate(world, seed=2)


@pytest.mark.parametrize("first", [Behaviour(is_refused=True), OSError(11, "no more processes")])
def test_a_node_that_cannot_be_started_ends_the_start(first: Behaviour | OSError) -> None:
    async def world() -> None:
        machine = Machine(plan={1: [first]})
        supervisor, scope = machine.supervisor()
        with pytest.raises(NodeNotStarted, match="node 1"):
            await supervisor.start()
        assert not machine.running
        await asyncio.sleep(100)
        assert len(machine.launches) == 3, "nothing is tried again"
        await scope.close()

    simulate(world, seed=2)


@pytest.mark.parametrize("status", [-9, FENCED])
def test_a_node_that_was_killed_or_fenced_while_it_started_is_started_again(status: int) -> None:
    async def world() -> None:
        unlucky = Behaviour(is_refused=True, refusal=status)
        machine = Machine(plan={1: [unlucky, unlucky]})
        supervisor, scope = machine.supervisor()
        assert len(await supervisor.start()) == 3
        assert [node.lives for node in supervisor.nodes] == [1, 3, 1]
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=8)


def test_a_node_that_dies_comes_back_after_pauses_that_double_and_keeps_its_port() -> None:
    async def world() -> None:
        bad: list[Behaviour | OSError] = [Behaviour(starts_s=0, lasts_s=0) for _ in range(8)]
        bad[3] = OSError(12, "no memory for a process")
        machine = Machine(plan={2: bad})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(200)
        times = [time for time, node_id in machine.launches if node_id == 2]
        pauses = [round(later - time, 1) for time, later in itertools.pairwise(times)]
        assert pauses == [FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S, LONGEST_S]
        assert supervisor.nodes[2].phase is Phase.READY
        assert machine.ports[2][0] == "start"
        first = [node_id for _, node_id in machine.launches].index(2)
        assert set(machine.ports[2][1:]) == {f"--port={FIRST_PORT + first}"}
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=3)


def test_a_node_that_does_not_stop_is_killed_and_named() -> None:
    async def world() -> None:
        machine = Machine(plan={0: [Behaviour(stops_s=FOR_EVER)]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        before = asyncio.get_running_loop().time()
        with pytest.raises(NodeNotStopped, match="node 0"):
            await supervisor.stop()
        assert not machine.running
        assert asyncio.get_running_loop().time() - before == pytest.approx(STOP_TIMEOUT_S)
        await scope.close()

    simulate(world, seed=4)


def test_a_rolling_restart_takes_one_node_down_at_a_time() -> None:
    async def world() -> None:
        machine = Machine(nodes=4)
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        supervisor.restart_nowait()
        supervisor.restart_nowait()  # one is under way: refused
        await asyncio.sleep(30)
        assert machine.down_most == 1
        assert [node.lives for node in supervisor.nodes] == [2, 2, 2, 2]
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=5)


def test_a_rolling_restart_ends_where_a_node_does_not_come_back() -> None:
    async def world() -> None:
        machine = Machine(plan={1: [Behaviour(), Behaviour(is_refused=True)]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        assert not await supervisor.rolling_restart()
        assert supervisor.nodes[2].lives == 1, "the others are left alone"
        await asyncio.sleep(10)
        assert supervisor.nodes[1].phase is Phase.READY, "and this one is tried again"
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=6)


def test_a_rolling_restart_does_not_begin_beside_a_node_that_is_down() -> None:
    async def world() -> None:
        broken: list[Behaviour | OSError] = [Behaviour(is_refused=True) for _ in range(50)]
        machine = Machine(plan={2: [Behaviour(lasts_s=5), *broken]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(6)
        assert not await supervisor.rolling_restart()
        assert supervisor.nodes[0].lives == 1
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=7)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_node_that_the_kernel_keeps_is_not_started_beside_itself(is_silent: bool) -> None:
    """Killed by a signal it may be kept with its output open: then nothing tells of its end."""

    async def world() -> None:
        stuck = Behaviour(lasts_s=5, stuck_s=300, is_silent=is_silent)
        machine = Machine(plan={1: [stuck]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(200)
        assert supervisor.nodes[1].lives == 1, "it has the lock of its log"
        if is_silent:
            assert supervisor.nodes[1].phase is Phase.DOWN
            assert len(machine.complaints) == 1
            assert re.fullmatch(r"process \d of node 1 cannot end", machine.complaints[0])
        await asyncio.sleep(200)
        assert supervisor.nodes[1].phase is Phase.READY
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=9)


@pytest.mark.parametrize("is_silent", [True, False])
@pytest.mark.parametrize("lasts_s", [5, FOR_EVER])
def test_a_stop_ends_in_time_beside_a_node_that_cannot_end(lasts_s: float, is_silent: bool) -> None:
    async def world() -> None:
        stuck = Behaviour(lasts_s=lasts_s, stops_s=FOR_EVER, stuck_s=FOR_EVER, is_silent=is_silent)
        machine = Machine(plan={1: [stuck]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(30)
        before = asyncio.get_running_loop().time()
        with pytest.raises(NodeNotStopped, match=r"process \d cannot end: a device"):
            await supervisor.stop()
        assert asyncio.get_running_loop().time() - before <= STOP_TIMEOUT_S + ENDING_S + 0.1
        await scope.close()

    simulate(world, seed=10)


def test_a_machine_is_unhealthy_whose_node_ends_again_and_again() -> None:
    async def world() -> None:
        bad: list[Behaviour | OSError] = [Behaviour(lasts_s=5) for _ in range(FAILURES_MAX)]
        machine = Machine(plan={1: bad, 2: bad[:-1]})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(1000)
        assert machine.complaints == ["node 1 ended 6 times in a row, last with status -9"]
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=11)


@pytest.mark.parametrize("status", [FENCED, UNAVAILABLE])
def test_what_no_other_machine_would_do_better_is_no_matter_of_health(status: int) -> None:
    """A store that nobody reaches must not have a group replace all its machines."""

    async def world() -> None:
        bad: list[Behaviour | OSError] = [
            Behaviour(is_refused=True, refusal=status) for _ in range(40)
        ]
        machine = Machine(plan={node: [Behaviour(lasts_s=70), *bad] for node in range(3)})
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        await asyncio.sleep(2000)
        assert machine.complaints == []
        await supervisor.stop()
        await scope.close()

    simulate(world, seed=12)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_nodes_come_back_and_stop_in_time(seed: int) -> None:
    """Lives of every kind, a rolling restart and a stop at random moments."""

    async def world() -> None:
        rng = random.Random(seed)
        machine = Machine()
        for node_id in range(machine.nodes):
            kinds = [random_behaviour(rng) for _ in range(rng.randrange(6))]
            machine.plan[node_id] = [Behaviour(starts_s=rng.random(), lasts_s=9), *kinds]
        supervisor, scope = machine.supervisor()
        await supervisor.start()
        loop = asyncio.get_running_loop()
        if seed % 3:
            await asyncio.sleep(rng.random() * 40)
            supervisor.restart_nowait()
        if seed % 2:
            await asyncio.sleep(1000)
            phases = [node.phase for node in supervisor.nodes]
            assert phases == [Phase.READY] * 3, "every node is back once its bad lives are over"
        else:
            await asyncio.sleep(rng.random() * 40)
        before = loop.time()
        try:
            await supervisor.stop()
        except NodeNotStopped:
            pass
        assert loop.time() - before <= STOP_TIMEOUT_S + ENDING_S + 1
        await asyncio.sleep(100)
        assert not machine.running
        await scope.close()
        launches = len(machine.launches)
        await asyncio.sleep(100)
        assert len(machine.launches) == launches

    simulate(world, seed=seed)


def random_behaviour(rng: random.Random) -> Behaviour | OSError:
    if rng.random() < 0.1:
        return OSError(11, "no more processes")
    return Behaviour(
        starts_s=rng.choice([0, 0.1, 1, 10]),
        is_refused=rng.random() < 0.3,
        refusal=rng.choice([1, -9, FENCED]),
        lasts_s=rng.choice([0, 0.5, 5, 50, 500]),
        stops_s=rng.choice([0, 0.2, 15, FOR_EVER]),
        stuck_s=rng.choice([0, 0, 0, 3, 60]),
        is_silent=rng.random() < 0.5,
    )
