"""What a topic asks of the batches that producers send it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """Limits and treatment of batches, from a topic's configs. Times in milliseconds."""

    batch_size_max: int = 1_048_588
    """Largest batch that is taken, in bytes (max.message.bytes)."""
    is_log_append_time: bool = False
    """Whether records get the time at which they are appended (message.timestamp.type)."""
    before_ms: int = 2**63 - 1
    """How far behind the clock timestamps may be (message.timestamp.before.max.ms)."""
    after_ms: int = 3_600_000
    """How far ahead of the clock timestamps may be (message.timestamp.after.max.ms)."""
    needs_keys: bool = False
    """Whether records without a key are refused (cleanup.policy)."""
    validates_records: bool = False
    """Whether each record is checked (lakehead.record.validation)."""
    codec: int | None = None
    """What batches are compressed with (compression.type); None: as they come."""
    level: int | None = None
    """The codec's level, if it has one."""

    @property
    def reads_records(self) -> bool:
        """Whether a batch is taken by its records, not by its header alone."""
        return self.needs_keys or self.validates_records

    def changes(self, codec: int) -> bool:
        """Whether batches of this codec are compressed again."""
        return self.codec is not None and self.codec != codec
