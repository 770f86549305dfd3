"""A member of a share group in a process of its own, so that it can be killed and paused.

`python -m tests.checker.share_member_process JSON` takes records by librdkafka, says what it thinks
of each, and prints a line of JSON for all that happens, before the next thing does:

- `{"got": [[partition, offset, delivery count, value], ...], "begun": ..., "ended": ...}`;
- `{"says": [[partition, offset, verdict], ...], "begun": ...}`, right before it does;
- `{"response": [[partition, offset], ...], "code": ..., "ended": ...}`;
- `{"error": text}`.

librdkafka has one request for records under way at most, sends it from a call of `poll` on, and
returns all that came of it at once. So `begun` is the first call of `poll` after the last records.
"""

import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Messages, ShareConsumer, TopicPartition

from tests.checker.history import identity_of
from tests.checker.share_history import OK, Verdict

POLL_S = 0.2
COMMIT_S = 5.0
_TYPES = {
    Verdict.ACCEPT: AcknowledgeType.ACCEPT,
    Verdict.RELEASE: AcknowledgeType.RELEASE,
    Verdict.REJECT: AcknowledgeType.REJECT,
}
_WEIGHTS = (78, 15, 7)
"""Of accept, release, reject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """One member. Its settings travel as JSON."""

    topic: str
    seed: str
    config: dict[str, str | int | float] = field(default_factory=dict)
    """Settings of librdkafka: with address, group and mode of acknowledgement."""
    lock_s: float = 30.0
    """The time of a lock: now and then a member holds records for longer."""
    is_draining: bool = False
    """True: it accepts all at once."""

    @property
    def is_explicit(self) -> bool:
        """Return true if it acknowledges each record by itself."""
        return self.config["share.acknowledgement.mode"] == "explicit"


def name_of(value: bytes) -> str:
    """Return the identity in a value of a `History`, else the whole value."""
    sent = identity_of(value)
    return value.decode(errors="replace") if sent is None else f"{sent.producer}:{sent.number}"


class Member:
    """The member, until a signal ends it."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        self._is_over = False
        self._consumer = ShareConsumer(options.config)
        self._consumer.set_acknowledgement_commit_callback(self._responded)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Take records and acknowledge them."""
        self._consumer.subscribe([self._options.topic])
        begun: float | None = None
        while not self._is_over:
            begun = time.monotonic() if begun is None else begun
            try:
                messages = self._consumer.poll(POLL_S)
            except KafkaException as error:
                _print(error=str(error))
                continue
            if self._took(messages, begun):
                begun = None
                self._hold()
                self._acknowledge(messages)
        self._consumer.close()

    def _took(self, messages: Messages, begun: float) -> bool:
        """Show what came. Return true if records did."""
        ended = time.monotonic()
        got = []
        for message in messages:
            if (error := message.error()) is not None:
                _print(error=str(error))
            else:
                value = name_of(message.value() or b"")
                got.append([message.partition(), message.offset(), message.delivery_count(), value])
        if got:
            _print(got=got, begun=begun, ended=ended)
        return bool(got)

    def _hold(self) -> None:
        """Take time for the records: mostly none, now and then more than the lock has."""
        chance = 1.0 if self._options.is_draining else self._rng.random()
        if chance < 1 / 100:
            time.sleep(self._options.lock_s * 1.2)
        elif chance < 1 / 4:
            time.sleep(self._rng.uniform(0.01, 0.5))

    def _acknowledge(self, messages: Messages) -> None:
        """Say something of each record, and send it now or with the next request."""
        records = [one for one in messages if one.error() is None]
        verdicts = [self._verdict() for _ in records]
        says = [
            [one.partition(), one.offset(), verdict]
            for one, verdict in zip(records, verdicts, strict=True)
        ]
        _print(says=says, begun=time.monotonic())
        try:
            if self._options.is_explicit:
                for one, verdict in zip(records, verdicts, strict=True):
                    self._consumer.acknowledge(one, _TYPES[verdict])
            if self._is_over or (chance := self._rng.random()) < 1 / 3:
                self._consumer.commit_sync(COMMIT_S)
            elif chance < 2 / 3:
                self._consumer.commit_async()
        except KafkaException as error:
            _print(error=str(error))

    def _verdict(self) -> Verdict:
        if self._options.is_draining or not self._options.is_explicit:
            return Verdict.ACCEPT
        [verdict] = self._rng.choices(tuple(Verdict), _WEIGHTS)
        return verdict

    def _responded(
        self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None
    ) -> None:
        code = OK if error is None else str(error.args[0].name())
        places = [[place.partition, offset] for place, found in offsets.items() for offset in found]
        _print(response=places, code=code, ended=time.monotonic())

    def _stop(self, _number: int, _frame: object) -> None:
        self._is_over = True


def _print(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    Member(MemberOptions(**json.loads(sys.argv[1]))).run()
