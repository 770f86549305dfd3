"""Kafka error codes as exceptions, and the one function that maps every exception to a code."""

from kio.schema.errors import ErrorCode

from lakehead.storage import errors as storage_errors
from lakehead.storage.errors import LakeheadError


class KafkaError(LakeheadError):
    """A request, or a part of it, fails with an error code. `message` is for the user."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class MalformedFrame(LakeheadError):
    """The bytes are not a Kafka request: the connection is closed, as Kafka does."""


class UnsupportedVersion(LakeheadError):
    """The request's api or version is not served: the connection is closed, as Kafka does."""


_CODES: dict[type[BaseException], ErrorCode] = {
    storage_errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    storage_errors.RecordTooLarge: ErrorCode.message_too_large,
    storage_errors.TopicExists: ErrorCode.topic_already_exists,
    storage_errors.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    storage_errors.StreamClosed: ErrorCode.not_leader_or_follower,
    storage_errors.Fenced: ErrorCode.not_leader_or_follower,
    storage_errors.WalFailed: ErrorCode.not_leader_or_follower,
    storage_errors.WalClosed: ErrorCode.not_leader_or_follower,
    storage_errors.WalFull: ErrorCode.not_leader_or_follower,
    storage_errors.StoreUnavailable: ErrorCode.kafka_storage_error,
    storage_errors.OutcomeUnknown: ErrorCode.kafka_storage_error,
    storage_errors.ObjectNotFound: ErrorCode.kafka_storage_error,
    storage_errors.ReadOnlyCluster: ErrorCode.policy_violation,
    storage_errors.CorruptObject: ErrorCode.kafka_storage_error,
    storage_errors.EntryRejected: ErrorCode.invalid_request,
    TimeoutError: ErrorCode.request_timed_out,
}


def error_message(error: BaseException) -> str | None:
    """Return the message of an exception for a user, or None if the code says everything."""
    return error.message if isinstance(error, KafkaError) else str(error)


def error_code(error: BaseException) -> ErrorCode:
    """Return the Kafka code of an exception; UNKNOWN_SERVER_ERROR for unexpected ones."""
    if isinstance(error, KafkaError):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error
