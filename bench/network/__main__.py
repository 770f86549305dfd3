"""`make bench-network`: the CPU of a GB over TLS, by several transports.

`bench.parts` says which variables of the environment choose parts and places.
"""

import bench.network
from bench.parts import main

if __name__ == "__main__":
    main(bench.network)
