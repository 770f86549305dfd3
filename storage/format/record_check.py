"""Checks that the records of a batch can be read, by the kernel that reads them for the lake."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakehead.storage.format.compression import BufferTooSmall, inflate_into
from lakehead.storage.format.record_batch import HEADER_SIZE, BatchHeader
from lakehead.storage.format.record_kernel import (
    FAULTS,
    ONE_ROW,
    RECORD_SIZE_MIN,
    parse_records,
)

INFLATED_BATCH_SIZE_MAX = 256 * 1024 * 1024
"""Bytes that the records of one batch may inflate to, for the lake."""
_INFLATED_SIZE_MIN = 1024 * 1024
_OFFSETS = (-(1 << 63), (1 << 63) - 1)


class UnreadableRecords(NamedTuple):
    """Why records cannot be read. `is_whole` for those of a whole batch, else it is about the times
    of some.
    """

    is_whole: bool
    reason: str


class RecordChecker:
    """Checks batches, one after the other. Re-uses its buffers, so it belongs to one thread."""

    def __init__(self, inflated_size_max: int = INFLATED_BATCH_SIZE_MAX) -> None:
        self._inflated = bytearray(min(_INFLATED_SIZE_MIN, inflated_size_max))
        self._size_max = inflated_size_max
        self._faults = np.empty((1, 2), np.int64)
        self._times = np.empty((1, 2), np.int64)
        longs, ints = np.empty(1, np.int64), np.empty(1, np.int32)
        self._row = (longs, longs.copy(), *(ints.copy() for _ in range(7)))

    def check(self, header: BatchHeader, batch: memoryview) -> UnreadableRecords | None:
        """Return why records of one whole batch cannot be read, None if they all can be."""
        try:
            records = self._records(header, batch[HEADER_SIZE : header.size])
        except ValueError as error:
            return UnreadableRecords(True, str(error))
        if header.record_count * RECORD_SIZE_MIN > len(records):
            return UnreadableRecords(True, f"{header.record_count} records do not fit its size")
        invalid, strange = self._call_kernel(header, records)
        if invalid:
            fault, place = self._faults[0].tolist()
            return UnreadableRecords(True, f"record {place}: {FAULTS[fault]}")
        if strange:
            offset, time = self._times[0].tolist()
            return UnreadableRecords(
                False,
                f"{strange} of its records have times beyond what a TIMESTAMP holds, first offset "
                f"{offset} with {time} ms since 1970",
            )
        return None

    def _records(self, header: BatchHeader, body: memoryview) -> memoryview:
        """Return the records, decompressed. Raises ValueError."""
        if header.codec == 0:
            return body
        while True:
            target = memoryview(self._inflated)
            try:
                return target[: inflate_into(header.codec, body, target)]
            except BufferTooSmall:
                size = len(self._inflated)
                if size >= self._size_max:
                    raise ValueError(f"its records inflate to more than {size} bytes") from None
                self._inflated = bytearray(min(2 * size, self._size_max))

    def _call_kernel(self, header: BatchHeader, records: memoryview) -> tuple[int, int]:
        """Return how many batches are invalid, and how many times are beyond the type."""
        batch = [0, 0, 0, header.attributes, header.base_offset, header.last_offset_delta]
        batch += [header.base_timestamp, header.max_timestamp, 0, header.record_count]
        batch += [0, len(records)]
        data: npt.NDArray[np.uint8] = np.frombuffer(records, np.uint8)
        invalid, strange, _ = parse_records(
            *(data, data, np.array([batch], np.int64), *_OFFSETS, ONE_ROW),
            *(self._faults, self._times, *self._row),
        )
        return invalid, strange
