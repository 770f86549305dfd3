"""The settings of a share group: its configs (GROUP resources), else those of the node."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

from immutables import Map

from lakehead.broker.configs.group_configs import (
    DEAD_LETTER_TOPIC,
    SHARE_DELIVERIES,
    SHARE_LOCK_DURATION,
    SHARE_RECORD_LOCKS,
    number_in_force,
)
from lakehead.broker.settings import Settings
from lakehead.broker.share.share_partition import ShareLimits
from lakehead.storage.metadata.state import MetadataImage

_DURATION = re.compile(
    r"by_duration:P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


_NONE: Mapping[str, str] = Map()


class OffsetReset(NamedTuple):
    """The place at which a group begins: the end of the log, its start, or the records of the last
    `duration`.
    """

    is_latest: bool
    duration: timedelta | None = None


class DeadLetterSettings(NamedTuple):
    """The topic of a group's dead letters, and if they have the records' keys and values."""

    topic: str
    copies_records: bool


class ShareSettings:
    """Looks up the settings of share groups."""

    def __init__(self, settings: Settings, state: Callable[[], MetadataImage]) -> None:
        self._settings = settings
        self._state = state

    def limits(self, group_id: str) -> ShareLimits:
        """Return the limits of each share-partition of a group."""
        return ShareLimits(
            self._number(group_id, SHARE_RECORD_LOCKS), self._number(group_id, SHARE_DELIVERIES)
        )

    def may_renew(self, group_id: str) -> bool:
        """Return true if members may renew the locks of records."""
        return self._config(group_id, "share.renew.acknowledge.enable") != "false"

    def lock_ms(self, group_id: str) -> int:
        """Return the time of an acquisition lock, in ms."""
        return self._number(group_id, SHARE_LOCK_DURATION)

    def is_committed(self, group_id: str) -> bool:
        """Return true if the group gets no records of transactions that are open or aborted."""
        return self._config(group_id, "share.isolation.level") == "read_committed"

    def reset(self, group_id: str) -> OffsetReset:
        """Return where the group begins in a partition (`share.auto.offset.reset`)."""
        value = self._config(group_id, "share.auto.offset.reset") or "latest"
        match = _DURATION.fullmatch(value)
        if match is None:
            return OffsetReset(value == "latest")
        parts = {name: float(number) for name, number in match.groupdict().items() if number}
        return OffsetReset(is_latest=False, duration=timedelta(**parts))

    def dead_letters(self, group_id: str) -> DeadLetterSettings | None:
        """Return where the dead letters of a group go; None if it has none."""
        topic = self._config(group_id, DEAD_LETTER_TOPIC)
        if not topic:
            return None
        copies = self._config(group_id, "errors.deadletterqueue.copy.record.enable")
        return DeadLetterSettings(topic, copies == "true")

    def _number(self, group_id: str, name: str) -> int:
        return number_in_force(name, self._configs(group_id), self._settings)

    def _config(self, group_id: str, name: str) -> str | None:
        return self._configs(group_id).get(name)

    def _configs(self, group_id: str) -> Mapping[str, str]:
        return self._state().group_configs.get(group_id, _NONE)
