"""The jobs of storage, each declared in the module of its name. `docs/adding-a-job.md` says how."""

from typing import Final

STORAGE_JOBS: Final = (
    "compact_objects",
    "compact_topics",
    "apply_retention",
    "sweep",
    "verify",
    "rebuild_catalog",
    "backup",
)
"""The modules here that declare a job, in the order of the documentation."""

MAINTENANCE_JOBS: Final = ("apply_retention", "compact_topics", "compact_objects")
"""Those that have a part in the maintenance loop, in the order of their turns."""

FORMER_JOBS: Final = {"compact": "compact_objects", "retain": "apply_retention"}
"""Names that jobs had a release ago, by the name of today."""
