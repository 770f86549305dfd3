"""Counts of throttled requests for metrics, and log events about them, bounded in their rate."""

from collections import Counter, defaultdict

import structlog

from lakehead.broker.quota.entities import EntityClass

REPORT_S = 30.0
"""Time between two log events about one type of quota."""
_NAME_MAX = 100
_log = structlog.get_logger("broker.quota")


class Throttles:
    """Counts by type of quota, and by the level at which the quota is set: two bounded sets."""

    def __init__(self) -> None:
        self.requests_total: Counter[str] = Counter()
        """Throttled requests and connections, by type of quota."""
        self.seconds_total: defaultdict[str, float] = defaultdict(float)
        """The sum of their throttle times, by type of quota."""
        self.levels_total: Counter[str] = Counter()
        """Throttled requests and connections, by the level at which the quota is set."""
        self._reported: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def count(
        self,
        quota: str,
        level: EntityClass,
        throttle_s: float,
        now: float,
        *,
        limit: float,
        user: str = "",
        client_id: str = "",
        address: str = "",
    ) -> None:
        """Count one throttled request; `now` is monotonic seconds."""
        self.requests_total[quota] += 1
        self.seconds_total[quota] += throttle_s
        self.levels_total[level.value] += 1
        reported = self._reported.get(quota)
        if reported is not None and now - reported < REPORT_S:
            self._suppressed[quota] += 1
            return
        self._reported[quota] = now
        _log.info(
            "quota_exceeded",
            quota=quota,
            level=level.value,
            user=user[:_NAME_MAX],
            client_id=client_id[:_NAME_MAX],
            client_host=address,
            limit=limit,
            throttle_ms=round(throttle_s * 1000),
            others_since_last_event=self._suppressed.pop(quota, 0),
        )
