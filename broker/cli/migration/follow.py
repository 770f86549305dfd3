"""An import as a whole: one round, or round after round while the source is written to, until the
operator ends it; then the positions of groups, ACLs and quotas.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from lakehead.broker.cli.migration.run import (
    POSITIONS,
    ImportedAccess,
    ImportedTopic,
    OnProgress,
    import_access,
    import_positions,
    import_topics,
)
from lakehead.broker.cli.migration.source_cluster import OWN_TOPICS, SourceCluster, SourceTopic
from lakehead.broker.cli.migration.target_store import TargetStore
from lakehead.storage.clock import Clock
from lakehead.storage.errors import BrokerUnavailable, RequestRefused
from lakehead.storage.failpoints import failpoint

_PAUSE_MIN_S, _PAUSE_MAX_S = 1.0, 10.0
"""Between rounds: as long as the last round took, within these."""
_CONFIGS_S = 60.0
"""Until the configs of topics are read again."""
_UNAVAILABLE_PAUSE_S = 10.0

ShowLine = Callable[[str], None]
"""Shows a line to the operator."""


class Import:
    """An import of the topics `names` (all, without any) into a store that is open.

    Methods raise RequestRefused, BrokerUnavailable, StorageError.
    """

    def __init__(
        self,
        source: SourceCluster,
        target: TargetStore,
        names: Sequence[str],
        *,
        clock: Clock,
        on_progress: OnProgress,
        from_start: bool,
    ) -> None:
        if own := sorted(OWN_TOPICS & set(names)):
            raise RequestRefused(
                f"{own[0]} has the state of the source itself, and is not imported: positions of "
                "groups come without it"
            )
        self._source = source
        self._target = target
        self._names = names
        self._clock = clock
        self._on_progress = on_progress
        self._from_start = from_start
        self._topics: list[SourceTopic] = []
        self.results: dict[str, ImportedTopic] = {}
        """By topic, with the records of all rounds."""

    async def copy(self, *, is_quick: bool = False) -> int:
        """Copy what is new of the topics; return how many records that is. A quick copy may take
        the configs of the last one.
        """
        topics = await self._source.topics(self._names, is_quick=is_quick)
        there = {one.name for one in topics}
        for name in self._names:
            if name not in there and name not in self.results:
                raise RequestRefused(f"the source has no topic {name}, or not for this user")
        done = await import_topics(
            self._source, self._target, topics, self._on_progress, from_start=self._from_start
        )
        self._topics = topics
        records = sum(one.records for one in done)
        for one in done:
            known = self.results.get(one.topic)
            one.records += 0 if known is None else known.records
            self.results[one.topic] = one
        for name, result in self.results.items():
            result.is_gone = result.is_gone or name not in there
        return records

    async def follow(self, stop: asyncio.Event, show: ShowLine) -> None:
        """Copy round by round until `stop` is set. A source that does not respond is waited for."""
        configs_read_s = -_CONFIGS_S
        while not stop.is_set():
            began_s = self._clock.monotonic()
            is_quick = began_s - configs_read_s < _CONFIGS_S
            configs_read_s = configs_read_s if is_quick else began_s
            try:
                records = await self.copy(is_quick=is_quick)
            except BrokerUnavailable as error:
                show(f"{error}; the next attempt is in {_UNAVAILABLE_PAUSE_S:.0f} s")
                pause_s = _UNAVAILABLE_PAUSE_S
            else:
                took_s = self._clock.monotonic() - began_s
                pause_s = min(max(_PAUSE_MIN_S, took_s), _PAUSE_MAX_S)
                if records:
                    show(f"{records} records came: all that the source had a moment ago")
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                pass

    async def finish(
        self, without: Collection[str], offsets_partitions: int
    ) -> tuple[int, ImportedAccess]:
        """Have the positions of groups, ACLs and quotas of the source, but for the parts in
        `without`, and commit all; return how many groups there are, and the others.
        """
        await self._target.upload()
        failpoint("import_topics_uploaded")
        groups = 0
        if POSITIONS not in without:
            groups = await import_positions(
                self._source, self._target, self._topics, offsets_partitions
            )
            await self._target.upload()
            failpoint("import_positions_uploaded")
        return groups, await import_access(self._source.brokers, self._target, without)
