"""`make bench-storage`: the parts of the storage engine, each compared with a peer if one exists.

`bench.parts` lists the environment variables that choose parts and places.
"""

import bench.storage
from bench.parts import main

if __name__ == "__main__":
    main(bench.storage)
