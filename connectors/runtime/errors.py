"""Errors of connectors, by the next step of their user. Every message is one line."""

from lakehead.storage.errors import LakeheadError


class ConnectorError(LakeheadError):
    """Base of the errors of connectors."""


class BadInput(ConnectorError):
    """Bad input: it cannot be a record. The message names place and reason."""


class InputChanged(ConnectorError):
    """Input that was read has changed, so a position in it means nothing."""


class InputReplaced(ConnectorError):
    """A file became another while it was read; a new look says what becomes of it."""


class InputLost(ConnectorError):
    """The next input does not exist any more."""


class KafkaFailed(ConnectorError):
    """The cluster refuses, or cannot be reached."""


class KafkaAway(KafkaFailed):
    """No broker responds now; one may later."""


class RunStopped(ConnectorError):
    """A run ended before its cluster responded; the next one reads again what is not committed."""


class ConnectorFenced(ConnectorError):
    """Another run of this connector has started; it goes on where this one was."""


class TransactionAborted(ConnectorError):
    """A transaction came to nothing; what was in it may be done again."""
