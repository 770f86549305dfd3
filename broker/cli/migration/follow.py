"""An import as a whole: one round, or round after round while the source is written to, until the
operator ends it; then the positions of groups, ACLs and quotas.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from lakehead.broker.cli.migration.run import (
    POSITIONS,
    ImportedAccess,
    ImportedPositions,
    ImportedTopic,
    OnProgress,
    import_access,
    import_positions,
    import_topics,
)
from lakehead.broker.cli.migration.source_brokers import Incarnation
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
        self._changed: set[Incarnation] = set()
        """Topics that are not what was imported of them: left out from then on, since one that has
        grown beyond the end that it has here would look as if it went on.
        """
        self._shown: set[str] = set()

    async def copy(self, *, is_quick: bool = False) -> int:
        """Copy what is new of the topics; return how many records that is, and leave the
        `problems`. A quick copy may take the configs of the last one.
        """
        topics = await self._source.topics(self._names, is_quick=is_quick)
        there = {one.name for one in topics}
        for name in self._names:
            if name not in there and name not in self.results:
                raise RequestRefused(f"the source has no topic {name}, or not for this user")
        topics = [one for one in topics if one.topic not in self._changed]
        done = await import_topics(
            self._source, self._target, topics, self._on_progress, from_start=self._from_start
        )
        records = sum(one.records for one in done)
        for topic, one in zip(topics, done, strict=True):
            known = self.results.get(one.topic)
            one.records += 0 if known is None else known.records
            self.results[one.topic] = one
            if one.has_changed:
                self._changed.add(topic.topic)
        self._topics = [one for one in topics if not self.results[one.name].problem]
        for name, result in self.results.items():
            result.is_gone = result.is_gone or name not in there
        return records

    async def follow(self, stop: asyncio.Event, show: ShowLine) -> None:
        """Copy round by round until `stop` is set. A source that does not respond is waited for;
        a topic that cannot be imported is shown once, and the others go on.
        """
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
                self._show_news(show)
                if records:
                    show(f"{records} records came: all that the source had a moment ago")
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                pass

    def _show_news(self, show: ShowLine) -> None:
        news = [f"{one.problem}; the others go on" for one in self.problems]
        news += [
            f"topic {name} was created again at the source: it is imported from its start"
            for name in sorted(self._target.made_again)
            if not self._from_start
        ]
        for text in news:
            if text not in self._shown:
                self._shown.add(text)
                show(text)

    @property
    def problems(self) -> list[ImportedTopic]:
        """The topics of which not all came."""
        return [one for one in self.results.values() if one.problem]

    async def finish(
        self, without: Collection[str], offsets_partitions: int
    ) -> tuple[ImportedPositions, ImportedAccess]:
        """Have the positions of groups, ACLs and quotas of the source, but for the parts in
        `without`, and commit all.
        """
        await self._target.upload()
        failpoint("import_topics_uploaded")
        positions = ImportedPositions()
        if POSITIONS not in without:
            positions = await import_positions(
                self._source, self._target, self._topics, offsets_partitions
            )
            await self._target.upload()
            failpoint("import_positions_uploaded")
        return positions, await import_access(self._source.brokers, self._target, without)
