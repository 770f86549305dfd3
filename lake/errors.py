"""Errors of reading a lake, beside those of `lakehead.storage.errors`."""

from lakehead.storage.errors import LakeheadError


class DataLoss(LakeheadError):
    """Records that were asked for are no longer there, or never were."""


class UndecodableValue(LakeheadError):
    """A value is not what its topic's declaration says. Names topic, partition and offset."""


class InvalidRecord(LakeheadError):
    """A batch, or the time of a record, that no reader can read although its bytes are as they were
    produced (Kafka's INVALID_RECORD). Names topic, partition and offsets.
    """


class ScanClosed(LakeheadError):
    """A scan was closed before it had given all its records."""
