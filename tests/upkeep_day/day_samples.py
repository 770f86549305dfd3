"""What a day looks like from outside: objects of each partition, and how old what a table lacks."""

import asyncio
import threading
from collections import defaultdict
from pathlib import Path

from lakehead.lake.jobs.table_due import lag_of
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.log_reader import LogReader
from lakehead.storage.metadata.state import MetadataImage, TableState
from lakehead.storage.object_store import FileStore
from tests.upkeep_day.day_schedule import DayClock

_EVERY_S = 0.1


class DaySamples:
    """Looks at the metadata several times a second while the day goes on."""

    def __init__(self, store: Path, clock: DayClock, table: str) -> None:
        self.objects: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        """The most objects of a partition, by its topic and by hour."""
        self.stale_s: dict[int, float] = defaultdict(float)
        """How many seconds of the day the table was behind at most, by hour."""
        self.stale: list[float] = []
        self.error: BaseException | None = None
        self._store = store
        self._clock = clock
        self._table = table
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join(30)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._look())
        except BaseException as error:  # raised by `finish`
            self.error = error

    async def _look(self) -> None:
        store = FileStore(self._store)
        reader = LogReader(store)
        await reader.load()
        while not self._stopped.is_set():
            await reader.catch_up()
            self._take(reader.state)
            await asyncio.sleep(_EVERY_S)
        await store.close()

    def _take(self, state: MetadataImage) -> None:
        hour = int(self._clock.now_s() // 3600)
        for name, topic in state.topics.items():
            for stream_id in topic.partitions:
                counts, count = self.objects[name], len(state.stream(stream_id).extents)
                counts[hour] = max(counts[hour], count)
        table = state.topics[self._table]
        held = state.tables.get(table.topic_id, TableState()).offsets
        lag = lag_of(state, table, held).seconds(SystemClock().now_ms()) * self._clock.scale
        self.stale_s[hour] = max(self.stale_s[hour], lag)
        self.stale.append(lag)
