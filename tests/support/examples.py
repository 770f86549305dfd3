"""Numbers of Hypothesis examples for tests of which each example costs much."""

import os


def examples(count: int) -> int:
    """Return `count` where slow tests run (`make property`), a third of it in every other run."""
    return count if os.environ.get("SLOW") else count // 3
