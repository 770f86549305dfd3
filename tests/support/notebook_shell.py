"""An IPython shell without a terminal, as a notebook's kernel has one."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest


def notebook_shell() -> Iterator[Any]:
    """A shell of its own; pytest skips where IPython is not installed."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False
    main = sys.modules["__main__"]
    shell = shells.InteractiveShell(config=config)
    try:
        yield shell
    finally:
        shell.reset(new_session=False)
        # A shell puts a module of its own there, and a reset empties it: processes that later
        # tests spawn look into it.
        sys.modules["__main__"] = main
