"""Features that Airflow has from a version on, with the effect of an Airflow without them.

The provider runs on Airflow 3.0 and newer. A feature that the installed version lacks is left out,
and DAGs, logs and docs/airflow-provider.md say so by its sentence.
"""

import re
from typing import NamedTuple

from airflow import __version__

AIRFLOW = tuple(int(number) for number in re.findall(r"\d+", __version__)[:3])
"""The three numbers of the installed Airflow's version."""


class Feature(NamedTuple):
    """A feature: the version that brought it, and the sentence for an Airflow without it."""

    since: tuple[int, ...]
    without: str

    @property
    def is_there(self) -> bool:
        """True if the installed Airflow has it."""
        return self.since <= AIRFLOW


APPROVALS = Feature(
    (3, 1),
    "This Airflow has no *Required Actions*: a run ends after its plan, and the work needs another "
    "run with the plan's digest as `approved_plan`.",
)
DEADLINES = Feature(
    (3, 1),
    "This Airflow has no deadlines: a late run makes no alert.",
)
NESTED_EXTRAS = Feature(
    (3, 1, 3),
    "This Airflow fails a task whose events of tables have lists or maps: `offsets` and `versions` "
    "are JSON texts there, which `new_data` reads.",
)
LIMITED_EVENTS = Feature(
    (3, 2),
    "This Airflow reads all events of an asset at once: a task that writes a table gets all of its "
    "table's.",
)
STATE_STORES = Feature(
    (3, 3),
    "This Airflow keeps no state of tasks and assets: a watcher that starts again begins at the "
    "present records, and a rescheduled sensor takes the topic that has the name at each look.",
)
SHARED_LOOKS = Feature(
    (3, 3),
    "This Airflow shares no polls among triggers: each deferred sensor and each watcher looks at "
    "the store by itself.",
)
PARTITIONED_EVENTS = Feature(
    (3, 3),
    "This Airflow has no events of partitions (AIP-76): CompleteHoursOperator needs Airflow 3.3.",
)
FEATURES = (
    APPROVALS,
    DEADLINES,
    NESTED_EXTRAS,
    LIMITED_EVENTS,
    STATE_STORES,
    SHARED_LOOKS,
    PARTITIONED_EVENTS,
)
