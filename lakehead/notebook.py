"""For notebooks: a cluster, its topics and tables as objects that show themselves, and SQL cells.

    from lakehead.notebook import Cluster

    Cluster("lakehead-data")["flights"].tail(5)

`%load_ext lakehead.notebook` adds the magic `%%lakehead`.
"""

from lakehead.lake.notebook import Cluster, Topic, load_ipython_extension

__all__ = ["Cluster", "Topic", "load_ipython_extension"]
