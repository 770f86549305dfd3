"""The packages of the extra `compaction`. A broker serves without them; compaction does not work
then.
"""

from functools import cache
from importlib.util import find_spec

_PACKAGES = ("numba", "numpy", "zstandard")
INSTALL_KERNELS = "pip install 'lakehead[compaction]'"


@cache
def are_kernels_installed() -> bool:
    """Return true if the packages can be imported."""
    return all(find_spec(name) for name in _PACKAGES)
