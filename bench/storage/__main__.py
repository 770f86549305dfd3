"""`make bench-storage`: the parts of the storage engine, each beside a peer where one exists.

`bench.parts` says which variables of the environment choose parts and places.
"""

import bench.storage
from bench.parts import main

if __name__ == "__main__":
    main(bench.storage)
