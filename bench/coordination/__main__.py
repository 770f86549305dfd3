"""`make bench-coordination`: many members of many groups on one node.

`bench.parts` says which variables of the environment choose parts and places.
"""

import bench.coordination
from bench.parts import main

if __name__ == "__main__":
    main(bench.coordination)
