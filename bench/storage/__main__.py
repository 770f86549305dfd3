"""`make bench-storage`: the parts of the storage engine, each compared with a peer if one exists.

`bench.parts` lists the environment variables that choose parts and places.
"""

import bench.storage
from bench.parts import main
from lakehead.broker.process import tune_memory

if __name__ == "__main__":
    tune_memory()  # as a node does
    main(bench.storage)
