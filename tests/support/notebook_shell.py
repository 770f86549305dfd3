"""An IPython shell without a terminal, as a notebook's kernel has one."""

from collections.abc import Iterator
from typing import Any

import pytest


def notebook_shell() -> Iterator[Any]:
    """A shell of its own; pytest skips where IPython is not installed."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False
    shell = shells.InteractiveShell(config=config)
    try:
        yield shell
    finally:
        shell.reset(new_session=False)
