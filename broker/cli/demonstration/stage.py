"""The demo's screen: numbered steps, progress bars, one table, and commands to try next."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.syntax import Syntax
from rich.table import Table

from lakehead.broker.cli.demonstration.loading import Loaded
from lakehead.broker.cli.demonstration.results import AirlineDelay

_WIDTH_MAX = 100


class Stage:
    """Prints to standard output; bars and spinners only on a terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.console.width = min(self.console.width, _WIDTH_MAX)
        self._step = 0
        self._began = time.perf_counter()

    def title(self, text: str, *, of: str = "Lakehead demo") -> None:
        """Print the first line."""
        self.console.print(f"\n[bold]{of}[/]  [dim]{text}[/]")

    def step(self, text: str) -> None:
        """Begin a numbered step."""
        self._step += 1
        self.console.print(f"\n[bold cyan]{self._step}[/]  [bold]{text}[/]")

    def say(self, text: str) -> None:
        """Print a line under the step."""
        self.console.print(Padding(text, (0, 0, 0, 3)))

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something is going on."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(text):
            yield

    @contextmanager
    def bars(self) -> Iterator[Progress]:
        """Show progress bars, which vanish at the end."""
        progress = Progress(
            TextColumn("  "),
            SpinnerColumn(),
            TextColumn("{task.description:<9}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("records"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        with progress:
            yield progress

    def loaded(self, topics: Sequence[Loaded]) -> None:
        """Show what was streamed."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("topic", "records", "MB of JSON", "seconds", "records/s"):
            table.add_column(heading, justify="left" if heading == "topic" else "right")
        for topic in topics:
            table.add_row(
                topic.topic,
                f"{topic.records:,}",
                f"{topic.size / 1e6:.1f}",
                f"{topic.seconds:.1f}",
                f"{topic.records / max(topic.seconds, 1e-9):,.0f}",
            )
        self.console.print(Padding(table, (0, 0, 0, 3)))

    def statement(self, sql: str) -> None:
        """Show a SQL statement."""
        code = Syntax(sql, "sql", theme="ansi_dark", background_color="default")
        self.console.print(Padding(code, (0, 0, 1, 3)))

    def result(self, rows: Sequence[AirlineDelay]) -> None:
        """Show the result, with a bar for each airline's flights."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("airline")
        table.add_column("flights", justify="right")
        table.add_column("mean delay", justify="right")
        table.add_column("")
        most = max((row.flights for row in rows), default=1)
        for row in rows:
            bar = "█" * max(1, round(24 * row.flights / most))
            delay = f"{row.mean_delay:+.1f} min"
            table.add_row(row.name, f"{row.flights:,}", delay, f"[cyan]{bar}[/]")
        self.console.print(Padding(table, (0, 0, 0, 3)))

    def comparison(self, results: Mapping[str, Sequence[AirlineDelay]]) -> None:
        """Show results of one query side by side, by their engine: flights and mean delay."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("airline", no_wrap=True)
        for name in results:
            table.add_column(name, justify="right", no_wrap=True)
        for rows in zip(*results.values(), strict=True):
            cells = [f"{row.flights:,} {row.mean_delay:+7.2f}" for row in rows]
            table.add_row(rows[0].name, *cells)
        self.console.print(Padding(table, (0, 0, 0, 3)))

    def commands(self, lines: Sequence[tuple[str, str]]) -> None:
        """Show commands to try, each with what it does."""
        for words, command in lines:
            self.console.print(f"   [dim]# {words}[/]")
            # Never folded: a command is there to be copied.
            self.console.print(f"   {command}", markup=False, soft_wrap=True)

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.perf_counter() - self._began
