"""For notebooks: a cluster, its topics and tables as objects that show themselves, and SQL cells.

from lakehead.lake.notebook import Cluster
cluster = Cluster("lakehead-data")
cluster["flights"].tail(5)

%load_ext lakehead.lake.notebook
"""

from typing import Any

from lakehead.lake.notebook.cluster import Cluster
from lakehead.lake.notebook.topic import Topic

__all__ = ["Cluster", "Topic", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Give an IPython shell `%lakehead` and `%%lakehead` (what `%load_ext` calls)."""
    from lakehead.lake.notebook.magic import LakeheadMagic

    shell.register_magic_function(LakeheadMagic(shell).run, "line_cell", "lakehead")
