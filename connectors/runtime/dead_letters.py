"""Bad input of a source, and its handling: failure, a dead letter, or a skip."""

from collections.abc import Sequence
from enum import StrEnum

from lakehead.connectors.runtime.errors import BadInput
from lakehead.connectors.runtime.interfaces import ConnectResult, DeadLetter, Record
from lakehead.connectors.runtime.transactions import RecordTooBig, Transactions

_LETTER_BYTES_MAX = 64 * 1024
_REASON_MAX = 1_000


class OnError(StrEnum):
    """The handling of bad input."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class DeadLetters:
    """Does with what cannot be a record what the user wants, in the transaction of the records."""

    def __init__(self, transactions: Transactions, on_error: OnError, topic: str) -> None:
        self._transactions = transactions
        self._on_error = on_error
        self._topic = topic

    def dispose(self, letters: Sequence[DeadLetter]) -> ConnectResult:
        """Skip what cannot be records, or write it. Raises BadInput, and as `Transactions.send`."""
        if not letters:
            return ConnectResult()
        if self._on_error == OnError.FAIL:
            first = letters[0]
            raise BadInput(
                f"{first.place}: {first.reason}. Repair it, or set on_error to skip or dead_letter"
            )
        if self._on_error == OnError.SKIP:
            return ConnectResult(skipped=len(letters))
        for letter in letters:
            self._send(letter)
        return ConnectResult(dead_letters=len(letters))

    def _send(self, letter: DeadLetter) -> None:
        """Write a dead letter, with as much of what was there as the topic takes."""
        size = _LETTER_BYTES_MAX
        reason = letter.reason[:_REASON_MAX].encode(errors="backslashreplace")
        place = letter.place.encode(errors="backslashreplace")
        headers = (("lakehead.error", reason), ("lakehead.place", place))
        while True:
            record = Record(letter.raw[:size], headers=headers)
            try:
                return self._transactions.send(self._topic, record)
            except RecordTooBig:
                if not size:
                    raise BadInput(
                        f"{letter.place}: topic {self._topic} rejects the dead letter: raise "
                        "its max.message.bytes"
                    ) from None
                size //= 2
