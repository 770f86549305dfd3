"""The rules of a topic for the batches that its producers send, from the topic's configs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """Limits and treatment of batches, from a topic's configs. Times in milliseconds."""

    batch_size_max: int = 1_048_588
    """Largest batch that is taken, in bytes (max.message.bytes)."""
    is_log_append_time: bool = False
    """True if records get the time at which they are appended (message.timestamp.type)."""
    before_ms: int = 2**63 - 1
    """Maximum age of timestamps, in milliseconds (message.timestamp.before.max.ms)."""
    after_ms: int = 3_600_000
    """Maximum time of timestamps ahead of the clock, in milliseconds
    (message.timestamp.after.max.ms).
    """
    needs_keys: bool = False
    """True if records without a key are refused (cleanup.policy)."""
    validates_records: bool = False
    """True if each record is checked (lakehead.record.validation)."""
    codec: int | None = None
    """The codec of batches (compression.type); None keeps the producer's."""
    level: int | None = None
    """The codec's level, if it has one."""

    @property
    def reads_records(self) -> bool:
        """Return true if a batch is taken by its records, not by its header alone."""
        return self.needs_keys or self.validates_records

    def changes(self, codec: int) -> bool:
        """Return true if batches of this codec are compressed again."""
        return self.codec is not None and self.codec != codec
