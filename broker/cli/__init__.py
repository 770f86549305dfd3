"""The `lakehead` command: one module per command, put together in `app`, started by `process`."""

from lakehead.broker.cli.imports import ended_by_interrupt, hidden, uncollected

# structlog would load rich, to show tracebacks in colours.
with ended_by_interrupt(), uncollected(), hidden("rich"):
    from lakehead.broker.cli.app import main
    from lakehead.broker.cli.process import run

__all__ = ["main", "run"]
