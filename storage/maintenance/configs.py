"""The configs that maintenance uses: their built-in defaults, and the value in force.

A topic that does not set a config has the broker default, which has a name of its own in Kafka. The
value in force is the first of: the value set for one broker or for all of them at run time (both
are in the metadata), the value in their settings, the built-in default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from lakehead.storage.compaction.dirtiness import MAP_MEMORY
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage

ALL_BROKERS = -1
"""The node id under which the metadata keep configs of all brokers."""
CLEANER_MEMORY = "log.cleaner.dedupe.buffer.size"
"""The brokers' config that bounds the memory of a compaction by keys, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceConfig:
    """A config of topics. `synonym` is the brokers' name for its default."""

    name: str
    synonym: str
    default: str
    kind: type = int

    def check(self, value: str) -> None:
        """Raise SettingsError unless the value could be one of the brokers'."""
        try:
            self.kind(value)
        except ValueError:
            raise SettingsError(f"{self.synonym}: {value!r} is not a number") from None


MAINTENANCE_CONFIGS: Mapping[str, MaintenanceConfig] = {
    config.name: config
    for config in (
        MaintenanceConfig(
            name="cleanup.policy", synonym="log.cleanup.policy", default="delete", kind=str
        ),
        MaintenanceConfig(
            name="delete.retention.ms",
            synonym="log.cleaner.delete.retention.ms",
            default="86400000",
        ),
        MaintenanceConfig(
            name="max.compaction.lag.ms",
            synonym="log.cleaner.max.compaction.lag.ms",
            default="9223372036854775807",
        ),
        MaintenanceConfig(
            name="min.cleanable.dirty.ratio",
            synonym="log.cleaner.min.cleanable.ratio",
            default="0.5",
            kind=float,
        ),
        MaintenanceConfig(
            name="min.compaction.lag.ms", synonym="log.cleaner.min.compaction.lag.ms", default="0"
        ),
        MaintenanceConfig(name="retention.bytes", synonym="log.retention.bytes", default="-1"),
        MaintenanceConfig(name="retention.ms", synonym="log.retention.ms", default="604800000"),
    )
}
"""By name."""
_BY_SYNONYM = {
    **{config.synonym: config for config in MAINTENANCE_CONFIGS.values()},
    CLEANER_MEMORY: MaintenanceConfig(name="", synonym=CLEANER_MEMORY, default=str(MAP_MEMORY)),
}
BROKER_DEFAULTS: Mapping[str, str] = {name: config.default for name, config in _BY_SYNONYM.items()}
"""Every config of brokers that upkeep goes by, with its built-in default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceDefaults:
    """Broker configs from outside the metadata: the values in their settings, by Kafka's names, and
    the id of the broker whose own configs count in addition to those of all brokers.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    node_id: int = ALL_BROKERS

    def check(self) -> None:
        """Raise SettingsError for a config that is unknown here, or whose value is not a number."""
        for name, value in self.given.items():
            config = _BY_SYNONYM.get(name)
            if config is None:
                known = ", ".join(sorted(_BY_SYNONYM))
                raise SettingsError(f"{name} is not a broker default; known: {known}")
            config.check(value)

    def values(self, state: MetadataImage) -> "MaintenanceValues":
        """Return the values in force in a cluster."""
        nothing: Mapping[str, str] = Map()
        return MaintenanceValues(
            places=(
                state.broker_configs.get(self.node_id, nothing),
                state.broker_configs.get(ALL_BROKERS, nothing),
                self.given,
                BROKER_DEFAULTS,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceValues:
    """Values in force: a config has that of the first of these `places` that has one."""

    places: tuple[Mapping[str, str], ...]

    def of_broker(self, name: str) -> str:
        """Return a config of brokers."""
        return next(values[name] for values in self.places if name in values).strip()

    def of_topic(self, name: str, configs: Mapping[str, str]) -> str:
        """Return a config of a topic that sets `configs`."""
        value = configs.get(name)
        return self.of_broker(MAINTENANCE_CONFIGS[name].synonym) if value is None else value.strip()
