"""Verification of transactions at a partition (KIP-890): the first batch of a transaction waits
until the coordinator responds that the partition is in it. Otherwise a batch that was delayed on
its way would open a transaction that no coordinator ends.

There is one verification for each producer, which ends as soon as a batch or a marker of a
transaction of it is appended: a later response is about another transaction. It also knows the
lowest sequence number that waited, so that a later batch is not accepted before an earlier one that
is sent again.
"""


class Verification:
    """The verification of one producer; compared by identity."""

    __slots__ = ("began_ms", "epoch", "is_adding", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, began_ms: int, *, is_adding: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.began_ms = began_ms
        self.is_adding = is_adding
        """True if the client's transactions are those of version 2, which begin with a new epoch
        and sequence 0.
        """


class Verifications:
    """The verifications of one partition, by producer."""

    def __init__(self) -> None:
        self._waiting: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, is_adding: bool
    ) -> Verification:
        """Return what a batch has to wait for: shared with those of its producer that wait."""
        known = self._waiting.get(producer_id)
        if known is None:
            known = Verification(epoch, sequence, now_ms, is_adding=is_adding)
            self._waiting[producer_id] = known
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known

    def get(self, producer_id: int) -> Verification | None:
        """Return what a producer waits for."""
        return self._waiting.get(producer_id)

    def end(self, producer_id: int, marker_epoch: int | None) -> None:
        """Record that a batch or a marker (`marker_epoch`) of the producer was appended.

        In transaction version 2 a marker bears the epoch of the next transaction. The client may
        have begun that one, and wait until the one before is complete: that marker does not end it.
        """
        known = self._waiting.get(producer_id)
        if known is None:
            return
        is_of_former = marker_epoch is not None and marker_epoch <= known.epoch
        if not (known.is_adding and is_of_former):
            del self._waiting[producer_id]

    def expire(self, before_ms: int) -> None:
        """Forget what began before `before_ms`."""
        old = [one for one, known in self._waiting.items() if known.began_ms < before_ms]
        for producer_id in old:
            del self._waiting[producer_id]
