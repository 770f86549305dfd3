"""Carries a fault plan out on real processes, and starts again whatever ended: the supervisor, too.

A node that ends without being told to (a fenced one does) is started again a second later.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from bench.lakehead_cluster import ClusterNode, LakeheadCluster
from tests.checker import fault_plan
from tests.checker.clocks import WallClock
from tests.checker.fault_plan import Fault
from tests.checker.namespaces import Network
from tests.support.s3_proxy import INTERNAL_ERROR, SLOW_DOWN, Delay, FaultProxy, Rule
from tests.support.s3_proxy import Fault as StoreFault

TICK_S = 0.02
RESTART_S = 1.0
STOP_S = 60.0
CLOCK_JUMP_S = 600
"""An S3 server refuses requests whose time is further off."""
_STORE_RULES = {
    "slow": (Rule(fault=Delay(0.3, 0.5)),),
    "throttled": (Rule(fault=SLOW_DOWN, probability=0.3),),
    "failing": (
        Rule(fault=INTERNAL_ERROR, probability=0.2),
        Rule(fault=StoreFault.RESET, probability=0.2),
    ),
    "answers lost": (Rule(fault=StoreFault.LOST_ANSWER, probability=0.2),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened to a target, from when to when, in seconds of the monotonic clock."""

    target: str
    kind: str
    begun: float
    ended: float


@dataclass(slots=True)
class Targets:
    """What faults can be injected into. Without a part, its faults are not to be had."""

    cluster: LakeheadCluster
    network: Network | None = None
    proxy: FaultProxy | None = None
    clocks: Sequence[WallClock] = ()

    def kinds(self) -> dict[int, tuple[str, ...]]:
        """The kinds of faults by target, for a plan."""
        of_a_node: tuple[str, ...] = fault_plan.PROCESS
        if self.network is not None:
            of_a_node += fault_plan.NETWORK
        if self.network is not None and self.proxy is not None:
            of_a_node += fault_plan.NO_STORE
        if self.clocks:
            of_a_node += fault_plan.CLOCK
        nodes = dict.fromkeys(range(len(self.cluster.nodes)), of_a_node)
        return nodes | {-1: fault_plan.STORE if self.proxy is not None else ()}


class Nemesis:
    """A thread that carries out a plan."""

    def __init__(self, targets: Targets, plan: Sequence[Fault]) -> None:
        self.events: list[Event] = []
        self.troubles: list[str] = []
        """What nodes must not do: not stop when they are asked to."""
        self._targets = targets
        self._plan = plan
        self._down: dict[int, float] = {}
        """Nodes that are kept from running, by when that began."""
        self._ended: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._store = ExitStack()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)

    def start(self) -> None:
        """Begin; the plan's times count from now."""
        self._thread.start()

    def finish(self) -> None:
        """End every fault, and start whatever is down."""
        self._stop.set()
        self._thread.join(STOP_S + 30)
        assert not self._thread.is_alive(), "the fault runner hangs"

    def _run(self) -> None:
        began = time.monotonic()
        waiting, running = list(self._plan), dict[Fault, float]()
        while not self._stop.is_set():
            now = time.monotonic()
            for fault in [f for f in running if began + f.ends <= now]:
                self._end(fault, running.pop(fault))
            while waiting and began + waiting[0].begins <= now:
                fault = waiting.pop(0)
                running[fault] = time.monotonic()
                self._begin(fault)
            self._revive()
            self._stop.wait(TICK_S)
        for fault, begun in running.items():
            self._end(fault, begun)
        deadline = time.monotonic() + STOP_S + RESTART_S
        while down := self._not_running():
            self._revive()
            if time.monotonic() > deadline:
                self.troubles += [f"start: node {number} does not run" for number in down]
                return
            time.sleep(TICK_S)

    def _not_running(self) -> list[int]:
        return [
            node.node_id
            for node in self._nodes
            if not node.server.is_running or node.node_id in self._asked
        ]

    @property
    def _nodes(self) -> list[ClusterNode]:
        return self._targets.cluster.nodes

    def _begin(self, fault: Fault) -> None:
        if fault.node < 0:
            self._store.enter_context(self._store_fault(fault.kind))
            return
        node = self._nodes[fault.node]
        if fault.kind in fault_plan.PROCESS:
            self._begin_process(fault.kind, node)
        elif fault.kind in fault_plan.CLOCK:
            ahead = fault.kind == "clock ahead"
            self._targets.clocks[fault.node].jump(CLOCK_JUMP_S if ahead else -CLOCK_JUMP_S)
        else:
            assert self._targets.network is not None
            self._targets.network.cut(fault.node, fault.kind)

    def _begin_process(self, kind: str, node: ClusterNode) -> None:
        if kind == "paused":
            node.pause()
            return
        self._down[node.node_id] = time.monotonic()
        if kind == "killed":
            node.kill()
        elif node.server.is_running:
            self._asked[node.node_id] = time.monotonic()
            node.server.process.terminate()

    def _end(self, fault: Fault, begun: float) -> None:
        if fault.node < 0:
            self._store.close()
        elif fault.kind == "paused":
            self._nodes[fault.node].resume()
        elif fault.kind in fault_plan.PROCESS:
            self._down.pop(fault.node, None)
            self._ended[fault.node] = begun  # long enough ago for a start at once
        elif fault.kind in fault_plan.CLOCK:
            self._targets.clocks[fault.node].jump(0)
        else:
            assert self._targets.network is not None
            self._targets.network.heal(fault.node)
        event = Event(target=fault.target, kind=fault.kind, begun=begun, ended=time.monotonic())
        self.events.append(event)

    def _store_fault(self, kind: str) -> AbstractContextManager[None]:
        proxy = self._targets.proxy
        assert proxy is not None
        return proxy.unreachable() if kind == "gone" else _spoiled(proxy, _STORE_RULES[kind])

    def _revive(self) -> None:
        """Start nodes that ended and are not kept down; note those that ended by themselves."""
        now = time.monotonic()
        for node in self._nodes:
            number = node.node_id
            if node.server.is_running:
                self._ended.pop(number, None)
                if now - self._asked.get(number, now) > STOP_S:
                    self.troubles.append(f"stop: node {number} does not stop in {STOP_S} s")
                    node.kill()
                continue
            was_asked = self._asked.pop(number, None) is not None
            if number in self._down:
                continue
            if number not in self._ended and not was_asked:
                status = node.server.process.returncode
                kind = "killed by a taker" if status == -9 else f"ended by itself ({status})"
                self.events.append(
                    Event(target=f"node {number}", kind=kind, begun=now, ended=now + RESTART_S)
                )
            since = self._ended.setdefault(number, now)
            if now - since >= RESTART_S:
                self._ended.pop(number)
                node.server.spawn()


@contextmanager
def _spoiled(proxy: FaultProxy, rules: Sequence[Rule]) -> Iterator[None]:
    """The store's proxy has these rules while the block runs."""
    proxy.rules = list(rules)
    try:
        yield
    finally:
        proxy.rules = []
