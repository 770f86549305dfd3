"""What a job is to an operator: units of work that a plan names, and work on some of them.

Units have keys that stay the same from plan to plan, so that a task may be told a range of keys and
plan for itself: what goes through XCom is small whatever the work is, and a task that is tried
again does what is left.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

from connectors.airflow.progress import in_bytes
from storage.jobs.frame import Progress, Runner

Figures = dict[str, Any]
"""What was done: numbers by name, the first few lines of what a person is to read, texts."""

IfTaken = Literal["skip", "retry"]
"""What becomes of a task whose table another process writes."""

LINES_MAX = 20
"""Lines of a figure that is a list; the figure `<name>_count` says how many there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of a job that is done or not done: `item` is the job's own, `size` in bytes (0 where
    nobody knows), `words` say to people what it is.
    """

    key: str
    size: int
    item: Any = None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is to be done, and what is known without doing it."""

    units: tuple[Unit, ...]
    figures: Figures = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all units."""
        return sum(unit.size for unit in self.units)

    def told(self, *, is_dry_run: bool) -> Figures:
        """Return what is known, and in a dry run the first of what would be done."""
        figures = self.figures | {"planned": len(self.units)}
        if self.size:
            figures["planned_bytes"] = self.size
        if is_dry_run:
            words = (_words(unit) for unit in self.units)
            figures["would_do"] = list(islice(words, LINES_MAX))
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table that a task was at, and what it committed: nothing, where there was nothing new, or
    where a try before it did. The offsets that came are in the table's own history
    (`lake.tables.table_history`).
    """

    topic: str
    uri: str
    commits: int = 0
    rows: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job runs: the cluster at `path`; `wait_s` seconds are waited for a table that another
    process writes, and if it keeps it, `if_taken` says what then. `workers` threads make a table's
    files. `log` is the task's. `written_by` names the task in the history of tables. With
    `is_retry` an earlier try may have made commits that are in no event; with `is_part` the task
    does some units of a job. `reports_all` has `on_change` called for the tables of all topics that
    the task names, not only for those that were written: lineage has these too.
    """

    path: str
    runner: Runner
    on_progress: Progress
    log: Any
    wait_s: float = 0.0
    if_taken: IfTaken = "skip"
    workers: int = 2
    is_local: bool = True
    is_dry_run: bool = False
    written_by: str = ""
    is_retry: bool = False
    is_part: bool = False
    reports_all: bool = False
    on_change: Callable[[TableChange], None] = lambda _change: None


def _words(unit: Unit) -> str:
    words = unit.words or unit.key
    return f"{words}: {in_bytes(unit.size)}" if unit.size else words


Options = Mapping[str, Any]
Cast = Callable[[Any], Any]


class Plan(Protocol):
    """Plans a job."""

    def __call__(self, place: Place, options: Options, *, again: bool) -> Planned:
        """Return what is to be done. `again`: for a task that does a part of what was planned
        before, which needs no figures.
        """


Work = Callable[[Place, Options, Sequence[Unit]], Figures]
"""Does units of a job, and returns figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job by its name. `options`: those it takes, and what makes their values of what a DAG has,
    texts of templates among it. `finish` looks at the figures of all, and raises what the job is to
    fail with. A task takes seconds to start, so one is worth while for `task_bytes`, or for
    `task_units`; with 0 bytes for each unit.
    """

    name: str
    options: Mapping[str, Cast]
    plan: Plan
    work: Work
    finish: Callable[[Figures], None] = lambda _figures: None
    task_bytes: int = 128 * 1024 * 1024
    task_units: int = 1000

    def tasks_worth(self, planned: Planned) -> int:
        """Return how many tasks the work is worth, at least one."""
        if not self.task_bytes:
            return max(len(planned.units), 1)
        by_bytes = -(-planned.size // self.task_bytes)
        return max(by_bytes, -(-len(planned.units) // self.task_units), 1)

    def options_of(self, given: Options) -> dict[str, Any]:
        """Return options as the job takes them, without those that are None or empty texts.

        Raises SettingsError for an option that there is not, and for a value that cannot be.
        """
        from storage.errors import SettingsError

        options = {}
        for name, value in given.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise SettingsError(f"job {self.name} has no option {name!r}: there are {known}")
            if value is None or value == "":
                continue
            try:
                options[name] = self.options[name](value)
            except (TypeError, ValueError):
                raise SettingsError(
                    f"option {name} of job {self.name} cannot be {value!r}"
                ) from None
        return options


def figures_of_both(one: Figures, more: Figures) -> Figures:
    """Return the figures of two parts: numbers are added, of lines the first are kept, and of texts
    the first that is one.
    """
    both = dict(one)
    for name, value in more.items():
        held = both.get(name)
        if held is None or held == "":
            both[name] = value
        elif isinstance(value, list):
            both[name] = [*held, *value][:LINES_MAX]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            both[name] = held + value
    return both


def names(value: Any) -> tuple[str, ...]:
    """Return names as a DAG may give them: a list, or a text with commas or spaces in between."""
    given = value.replace(",", " ").split() if isinstance(value, str) else value
    return tuple(str(name) for name in given)


def truth(value: Any) -> bool:
    """Return what a DAG has as a truth value, text of a template included. Raises ValueError."""
    text = str(value).strip().lower()
    if text not in {"true", "false", "1", "0"}:
        raise ValueError(value)
    return text in {"true", "1"}


def mapping(value: Any) -> dict[str, str]:
    """Return texts by name, given as such or as JSON. Raises ValueError, TypeError."""
    given = json.loads(value) if isinstance(value, str) else value
    return {str(name): str(one) for name, one in dict(given).items()}
