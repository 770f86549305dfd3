"""`make bench-cluster`: clusters of several node processes on this machine.

`bench.parts` says which variables of the environment choose parts and places.
"""

import bench.cluster
from bench.parts import main

if __name__ == "__main__":
    main(bench.cluster)
