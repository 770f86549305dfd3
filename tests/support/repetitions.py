"""Numbers of repetitions: few in `make test`, all where slow tests run (`make test-long`)."""

import os

IS_LONG = bool(os.environ.get("SLOW"))
"""True if slow tests run."""


def repetitions(many: int, few: int) -> int:
    """Return `many` where slow tests run, `few` in every other run."""
    return many if IS_LONG else few


def examples(count: int) -> int:
    """Return the number of Hypothesis examples: `count`, or a third of it with at least 10."""
    return repetitions(count, min(count, max(count // 3, 10)))
