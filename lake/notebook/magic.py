"""`%lakehead` and `%%lakehead` of IPython."""

import shlex
from typing import Any

from lakehead.lake.notebook.cluster import Cluster
from lakehead.storage.errors import LakeheadError

ROWS_MAX = 1_000
"""Default limit of the rows of a cell: more would fill the notebook."""
_USAGE = "%%lakehead [--rows N] [--into NAME], with SQL below; %lakehead PATH names the cluster"


class LakeheadMagic:
    """One shell's cluster: the one that `%lakehead PATH` named, else the default of `Cluster`."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._cluster: Cluster | None = None

    def run(self, line: str, cell: str | None = None) -> Any:
        """`%lakehead [PATH]` returns the cluster, after that of SQL cells. `%%lakehead` runs a cell
        of SQL, `--rows N` for more rows or fewer, `--into NAME` to have them in a variable too.
        """
        from IPython.core.error import UsageError

        try:
            words = shlex.split(line)
            if cell is None:
                return self._connect(words)
            rows, name = _cell_options(words)
            frame = self._connect([]).sql(cell, rows=rows)
        except (LakeheadError, ValueError) as error:
            raise UsageError(str(error)) from None  # IPython shows it without a traceback
        if name is not None:
            self._shell.push({name: frame})
        return frame

    def _connect(self, words: list[str]) -> Cluster:
        if len(words) > 1:
            raise ValueError(_USAGE)
        if words or self._cluster is None:
            self._cluster = Cluster(*words)
        return self._cluster


def _cell_options(words: list[str]) -> tuple[int, str | None]:
    rows, name = ROWS_MAX, None
    given = iter(words)
    for word in given:
        value = next(given, "")
        if word == "--rows" and value.isascii() and value.isdigit():
            rows = int(value)
        elif word == "--into" and value.isidentifier():
            name = value
        else:
            raise ValueError(_USAGE)
    return rows, name
