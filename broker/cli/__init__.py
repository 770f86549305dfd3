"""The `lakehead` command: one module per command, put together in `app`, started by `process`."""

from lakehead.broker.cli.imports import hidden, uncollected

with uncollected(), hidden("rich"):  # structlog would load it, to show tracebacks in colours
    from lakehead.broker.cli.app import main
    from lakehead.broker.cli.process import run

__all__ = ["main", "run"]
