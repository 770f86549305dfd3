"""The topics of a simulated cluster that have clients of their own."""

from lakehead.broker.partition.partition import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)

TRANSFERS = "transfers"
"""Of transactional producers."""
COPIES = "copies"
"""Of the copier, and its group."""
TASKS = "tasks"
"""Of share groups; written as the administrator's topics are."""
EVENTS = "events"
"""Of consumer groups; written as the administrator's topics are."""
RESERVED = frozenset({TRANSFERS, COPIES, TRANSACTIONS_TOPIC, OFFSETS_TOPIC, SHARE_STATES_TOPIC})
"""Those that the clients inside of members leave alone."""
KEPT = RESERVED | {TASKS, EVENTS}
"""Those that no administrator deletes."""
