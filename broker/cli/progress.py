"""Progress on a terminal; nothing where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show these words with a spinner on standard error, while the block runs at a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(words):
        yield


class ByteProgress:
    """A bar of bytes done, on standard error."""

    def __init__(self, words: str, *, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(words, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """Show `done` of `total` bytes."""
        self._progress.update(self._task, completed=done, total=total)
