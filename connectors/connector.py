"""A connector: a source, a sink and how it runs, put together from its settings.

It is run by `lakehead connect run` and by Airflow's `LakeheadConnectOperator`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from lakehead.connectors.pipelines import Intake, Plan, TopicCopy
from lakehead.connectors.runtime.interfaces import ConnectResult, Position, Progress, Source
from lakehead.connectors.runtime.kafka_clients import KafkaConfig, checked_config
from lakehead.connectors.runtime.settings import dotted
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.settings import (
    ConnectorSettings,
    DeltaSettings,
    FilesSettings,
    TopicsSettings,
)
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError


class Pipeline(Protocol):
    """A source and a sink, joined."""

    def run(
        self, *, follow: bool, stop: Stop, on_progress: Callable[[Progress], None]
    ) -> ConnectResult:
        """Read what there is, or go on until stopped. Raises LakeheadError."""

    def plan(self) -> Plan:
        """Return what a run would read now, and change nothing. Raises LakeheadError."""

    def positions(self) -> Mapping[str, Position]:
        """Return how far each partition of the source was read. Raises LakeheadError."""


class Connector:
    """Runs one connector. `stop` may be called from another thread or a signal handler."""

    def __init__(
        self,
        settings: ConnectorSettings,
        clock: Clock,
        *,
        name: str,
        kafka: Mapping[str, str] | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """`kafka` are settings of the cluster, before which those of the file go; `name` says where
        the settings are from.

        Raises SettingsError.
        """
        self._stop = Stop(clock, within_s=settings.run.stop_seconds)
        self._on_progress = on_progress
        try:
            given = {**(kafka or {}), **dotted(settings.kafka, "kafka")}
            config = checked_config(given, "kafka")
            self._pipeline = self._joined(settings, config, clock)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None

    def _joined(self, settings: ConnectorSettings, config: KafkaConfig, clock: Clock) -> Pipeline:
        if isinstance(settings.source, TopicsSettings):
            return TopicCopy(settings, settings.source, config, clock)
        if settings.sink.kafka:
            raise SettingsError("sink.kafka: only for copies of topics; the cluster is in [kafka]")
        source = _opened(settings.source, clock, self._stop)
        return Intake(settings, source, config, clock)

    def stop(self) -> None:
        """Have the run end soon, with what it has read committed: `RunSettings.stop_seconds`."""
        self._stop.request()

    @property
    def stopping(self) -> str:
        """The effect of a stop, for people."""
        return (
            "Stopping: what was read is committed first, for which a cluster that does not respond "
            f"has {self._stop.within_s:g} s"
        )

    def run(self, *, follow: bool = False) -> ConnectResult:
        """Read what there is, or go on until stopped. Raises LakeheadError."""
        return self._pipeline.run(follow=follow, stop=self._stop, on_progress=self._on_progress)

    def plan(self) -> Plan:
        """Return what a run would read now, and change nothing. Raises LakeheadError."""
        return self._pipeline.plan()

    def positions(self) -> Mapping[str, Position]:
        """Return how far each partition of the source was read. Raises LakeheadError."""
        return self._pipeline.positions()


def _opened(settings: FilesSettings | DeltaSettings, clock: Clock, stop: Stop) -> Source:
    if isinstance(settings, FilesSettings):
        from lakehead.connectors.sources.files.source import FilesSource

        return FilesSource(settings, clock, stop.wait)
    from lakehead.connectors.sources.delta import DeltaSource

    return DeltaSource(settings)
