"""What a run did."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lakehead.storage.jobs.job import Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFigures(Totals):
    """Of one run. Counts only what was committed."""

    records: int = 0
    """Records that are in their topic now."""
    bytes: int = 0
    """Of their keys and values."""
    dead_letters: int = 0
    """What could not be a record and is in the dead-letter topic."""
    skipped: int = 0
    """What could not be a record and was left out."""
    finished: int = 0
    """Partitions of the source (files, versions) that were read to their end."""
    transactions: int = 0
    aborted: int = 0
    """Transactions that came to nothing and were done again."""
    seconds: float = 0.0

    def as_fields(self) -> dict[str, Any]:
        """Return name and figure, as a command or a task shows them."""
        fields = asdict(self)
        fields["seconds"] = round(self.seconds, 3)
        return {name.replace("_", " "): value for name, value in fields.items()}


class Progress(NamedTuple):
    """How far a run is."""

    figures: ConnectFigures
    doing: str
    done_bytes: int
    total_bytes: int
