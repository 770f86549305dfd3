"""The `lakehead` command: one module per command, put together in `app`."""

from broker.cli.app import main

__all__ = ["main"]
