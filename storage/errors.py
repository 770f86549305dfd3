"""Every error that `storage` raises, by what a caller would do differently.

Closed by us, fenced by another, and broken by the world are different errors. The outcome of a
conditional write is one of three: done (no error), lost to another (`ObjectExists`), or unknown
(`OutcomeUnknown`, resolved by reading back); `StoreUnavailable` says that nothing was written and
the call may be repeated.
"""

from typing import Any


class LakeheadError(Exception):
    """Base of every error that Lakehead raises on purpose. It can be pickled, whatever parameters
    its class is made with: worker processes and Spark's executors send it to the job.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[LakeheadError], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class SettingsError(LakeheadError):
    """A setting, an option or a configuration is wrong. The message is one line that says what to
    do; another try without a change fails again.
    """


class NotFound(LakeheadError):
    """The cluster does not have the thing that a command names: a topic, node, object or entry."""


class RequestRefused(LakeheadError):
    """A broker refuses a request, or a rule that protects data refuses a step. Nothing changed."""


class BrokerUnavailable(LakeheadError):
    """A broker does not respond at the given address. Another try may find one."""


class StorageError(LakeheadError):
    """Base of the errors of `storage`."""


class ObjectExists(StorageError):
    """A put-if-absent lost: the key already holds an object (it may be ours, written by an earlier
    try).
    """


class ObjectNotFound(StorageError):
    """No object has this key."""


class StoreUnavailable(StorageError):
    """The store refused or could not be reached, and nothing was written: repeat after a pause."""


class StoreRefused(StoreUnavailable):
    """The store refuses until an operator acts: permission denied, read-only. Nothing was
    written.
    """


class KeyUnavailable(StoreRefused):
    """Data cannot be encrypted or decrypted until an operator acts: the wrapping key is not given,
    not there, another one, or its provider refuses. Nothing was written.
    """


class NotEncrypted(StoreRefused):
    """Data are plain where the operator requires encryption (`encryption.required`)."""


class StoreThrottled(StoreUnavailable):
    """The store requires fewer requests. Nothing was written."""


class ReadOnlyCluster(StorageError):
    """This process only reads the cluster, as a standby does. Nothing was written."""


class CopyPromoted(StorageError):
    """The copy of a cluster that a standby follows is a cluster of its own by now."""


class OutcomeUnknown(StorageError):
    """A write may or may not have happened (timeout, lost response): read back before deciding."""


class CorruptObject(StorageError):
    """Bytes of an object do not match their checksum or layout."""

    def __init__(self, key: str, position: int, reason: str) -> None:
        super().__init__(f"object {key} is corrupt at byte {position}: {reason}")
        self.key = key
        self.position = position
        self.reason = reason


class UnsupportedFormat(StorageError):
    """Something was written by a newer Lakehead than this one. The message says what, and to
    upgrade.
    """


class EntryRejected(StorageError):
    """The rules of the metadata state refuse a record."""


class FeatureNotEnabled(EntryRejected):
    """A record or field needs a higher feature level than the one in force."""

    def __init__(self, what: str, needed: int, level: int) -> None:
        super().__init__(
            f"{what} needs metadata.version {needed}, and the cluster is at {level}: start every "
            "node with this release, then run: lakehead features upgrade"
        )


class TopicExists(EntryRejected):
    """A topic of this name exists."""


class UnknownTopic(EntryRejected):
    """No topic has this name or id."""


class Fenced(StorageError):
    """Another incarnation has taken over this node's identity: stop writing, register again."""


class WalFull(StorageError):
    """The write-ahead log has no room until it is trimmed: stop reading from producers and try
    again.
    """


class WalFailed(StorageError):
    """A write of the write-ahead log failed or its outcome is unknown: nothing after it is
    acknowledged.
    """


class WalHolderEnding(StorageError):
    """A process still has the log, and will not for long: it has been ended, and the kernel keeps
    it in a call to a device; or another node recovers the log by it. Start again when it is gone.
    """


class WalClosed(StorageError):
    """The write-ahead log was closed by its owner."""


class WalCorrupted(StorageError):
    """Acknowledged data in the write-ahead log is damaged. The message names the device and the
    position.
    """


class WrongLog(StorageError):
    """The write-ahead log that was opened, or that is missing, is not the one that holds what the
    node acknowledged last: another one, an empty one, or an older state of it.
    """


class RecordTooLarge(StorageError):
    """One record is larger than the write-ahead log takes."""


class StreamClosed(StorageError):
    """The stream is not open on this node."""


class OffsetOutOfRange(StorageError):
    """The offset is outside [start offset, confirmed offset] of the stream."""
