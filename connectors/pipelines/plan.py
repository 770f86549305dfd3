"""What a run would do: for `--dry-run`."""

from dataclasses import dataclass

from lakehead.connectors.runtime.interfaces import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would read."""

    works: tuple[Work, ...]
    unit: str = "bytes"
    """Of the sizes of works: bytes, or offsets."""
    first_key: str | None = None
    """Of the first record that would be written; None if there is no record, or no key."""
    first_value: str | None = None
    """How its value begins."""
    first_trouble: str | None = None
    """What in the beginning of it cannot be a record."""
