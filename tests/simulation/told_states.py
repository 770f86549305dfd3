"""Partition states that say what they are of, so that what is left of them can be judged."""

import random

from lakehead.storage.format.partition_state import (
    PackedState,
    ProducerBatch,
    ProducerRecord,
    StateSnapshot,
    decode_packed,
    encode_packed,
    newest,
    pack_producer,
    unpack_producer,
)
from lakehead.storage.stream.stored_state import StoredState
from tests.simulation.ledger import Violation

WHOLE_SHARE = 0.2


class ToldStates:
    """The states that the owner of a stream uploads: each has one producer, with one batch, from
    the end of the state before it to its own. Mostly they are incremental, since any offset from
    which on the owner has some.
    """

    def __init__(self, stored: StoredState, rng: random.Random) -> None:
        self._end = stored.end_offset
        self._since = stored.since if stored.states else stored.end_offset
        self._rng = rng

    def snapshot(self, start_offset: int, end_offset: int) -> StateSnapshot:
        """Return the state of an upload of [start, end)."""
        batch = ProducerBatch(0, end_offset - self._end - 1, self._end, end_offset)
        record = pack_producer(ProducerRecord(self._end, 0, 0, [batch]))
        data, self._end = encode_packed(PackedState(record)), end_offset
        if self._rng.random() < WHOLE_SHARE:
            self._since = start_offset
            return StateSnapshot(data)
        self._since = self._rng.randint(self._since, start_offset)
        return StateSnapshot(data, self._since)


def check_stored(stream_id: int, stored: StoredState) -> None:
    """Raise Violation unless states follow each other from where they count to their end."""
    if not stored.states:
        return
    held = newest(list(map(decode_packed, stored.states)))
    spans = sorted(
        (batch.base_offset, batch.end_offset)
        for _, data in held.records()
        for batch in unpack_producer(data).batches
    )
    reached = stored.since
    for base, end in spans:
        if base > reached:
            raise Violation(f"stream {stream_id}: no state of [{reached}, {base}), but {spans}")
        reached = end
    if reached != stored.end_offset:
        raise Violation(f"stream {stream_id}: states up to {reached}, not {stored.end_offset}")
