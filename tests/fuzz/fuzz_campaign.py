"""One run of a target: inputs by a seed, until the time or the count is up, or one is a fault.

A fault is an error that is not the target's own, five seconds of processor time, or more memory
than the input may cost. Valid inputs are kept, and others are made of them.
"""

import random
import signal
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.mutations import fresh, mutated
from tests.fuzz.targets import TARGETS, seeded

CPU_S_MAX = 5.0
_KEPT_MAX = 500


class Stuck(BaseException):
    """An input took too much processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An input and what it did."""

    data: bytes
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """The result: inputs that were tried, valid ones among them, and the fault, if there is one."""

    tried: int
    valid: int
    fault: Fault | None


def _stuck(_number: int, _frame: FrameType | None) -> None:
    raise Stuck


def problem_of(name: str, data: bytes) -> tuple[str, bool]:
    """Return the fault of a target with an input, empty for none, and true if it is valid."""
    target = TARGETS[name]
    before = signal.signal(signal.SIGPROF, _stuck)
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
    problem, is_valid = "", False
    try:
        target.read(data)
        is_valid = True
    except target.errors:
        pass
    except Stuck:
        problem = f"more than {CPU_S_MAX:g} s of processor time"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    used = tracemalloc.get_traced_memory()[1] - start
    most = target.base_bytes + target.bytes_each * len(data)
    if not problem and used > most:
        problem = f"{used} bytes allocated for an input of {len(data)}, at most {most}"
    return problem, is_valid


def run(name: str, seed: int, *, goes_on: Callable[[int], bool]) -> Campaign:
    """Fuzz a target while `goes_on` says so of the number of inputs."""
    rng = random.Random(f"{name}/{seed}")
    kept = seeded(name, rng)
    first = list(kept)
    tried = valid = 0
    is_traced = tracemalloc.is_tracing()
    tracemalloc.start(1)
    try:
        problem_of(name, kept[0])  # what a first use imports and caches is not the input's
        while goes_on(tried):
            if tried < len(first):
                data = first[tried]
            else:
                data = fresh(rng) if rng.random() < 0.1 else mutated(rng.choice(kept), rng, kept)
            problem, is_valid = problem_of(name, data)
            tried += 1
            if problem:
                return Campaign(tried=tried, valid=valid, fault=Fault(data=data, problem=problem))
            if is_valid:
                valid += 1
                if len(kept) < _KEPT_MAX + len(first):
                    kept.append(data)
                else:
                    kept[rng.randrange(len(first), len(kept))] = data
    finally:
        if not is_traced:
            tracemalloc.stop()
    return Campaign(tried=tried, valid=valid, fault=None)
