"""What all jobs share: how work items are run, and how progress is told.

A runner maps a function over work items, in any order: in this process (`here`), in a pool of
processes of this machine, or as tasks of Spark (both in `lake.jobs`). Function, items and results
must be picklable. What an item does is durable, or visible, by itself: a runner may run it again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Protocol, Self, TypeVar

from storage.errors import LakeheadError

_log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Counted = TypeVar("Counted", bound="Figures")

Progress = Callable[[int, int], None]
"""Told (bytes that are done, bytes of all work items)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run has done, in fields that add up: each kind of job has its own."""

    def plus(self, more: Self) -> Self:
        """Return the figures of both."""
        names = [one.name for one in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(more, name) for name in names})


class Runner(Protocol):
    """Works items through."""

    def __call__(
        self, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield (item, work(item)) as they are done. Raises the first error of an item."""


def here(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
    """Work in this process, one item after the other."""
    for item in items:
        yield item, work(item)


def untold(_done: int, _total: int) -> None:
    """Progress for nobody."""


def worked_through(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    runner: Runner = here,
    on_progress: Progress = untold,
) -> Iterator[Result]:
    """Yield the results of all items as they are done, and tell progress by their sizes in bytes.

    Raises the first error of an item: what was done by then stays done.
    """
    total, done = sum(map(size, items)), 0
    on_progress(0, total)
    for item, result in runner(work, items):
        done += size(item)
        on_progress(done, total)
        yield result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An item that could not be done, in words for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Item, Result]):
    """`work` as a runner may be given it where one item's failure is not to stop the others.
    `words` says of an item what it is about.
    """

    work: Callable[[Item], Result]
    words: Callable[[Item], str]

    def __call__(self, item: Item) -> Result | Failed:
        """Return what `work` does, or why it failed. What no code of ours expects is logged with
        its traceback, and stops no other item either.
        """
        try:
            return self.work(item)
        except LakeheadError as error:
            return Failed(reason=f"{self.words(item)}: {error}")
        except Exception as error:  # noqa: BLE001 - one item never stops the others
            _log.exception("%s: unexpected %s", self.words(item), type(error).__name__)
            return Failed(
                reason=f"{self.words(item)}: unexpected {type(error).__name__}: {error} (the log "
                "of the job has the traceback; please report it)"
            )


def tallied(figures: Counted, more: Iterable[Counted]) -> Counted:
    """Return `figures` with all of `more` added."""
    for one in more:
        figures = figures.plus(one)
    return figures
