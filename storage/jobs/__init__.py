"""The jobs of storage, each declared in the module of its name. `docs/adding-a-job.md` says how."""

from typing import Final

STORAGE_JOBS: Final = {
    name: (f"{__name__}.{name}", command)
    for name, command in {
        "compact": "compact-objects",
        "compact_topics": "compact-topics",
        "retain": "apply-retention",
        "sweep": "sweep",
        "verify": "verify",
        "rebuild_catalog": "rebuild-catalog",
    }.items()
}
"""The module and the command of each job, in the order of the command line's help."""
