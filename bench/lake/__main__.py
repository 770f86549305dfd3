"""`make bench-lake`: Spark's reads, `lakehead.scan` and the jobs, over topics of a gigabyte and
more.

`bench.parts` says which variables of the environment choose parts and places.
"""

import bench.lake
from bench.parts import main

if __name__ == "__main__":
    main(bench.lake)
