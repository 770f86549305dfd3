"""Kafka's configs of brokers, read from the tables of names: `KAFKA_CONFIGS`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakehead.broker.configs.definition import ConfigDefinition, ConfigType, Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Configs that are treated alike, a line for each: name, type, Kafka's default (`-`: null,
    `""`: empty), and `dynamic` where Kafka changes it while a broker runs.
    """

    effect: Effect
    reason: str
    configs: str

    def definitions(self) -> Iterator[ConfigDefinition]:
        """Yield the configs."""
        for line in self.configs.split("\n"):
            if not line:
                continue
            name, kind, default, *rest = line.split(" ")
            yield ConfigDefinition(
                name=name,
                kind=ConfigType[kind.upper()],
                default=_DEFAULTS.get(default, default),
                note=self.reason,
                effect=self.effect,
                is_dynamic=rest == ["dynamic"],
            )


_DEFAULTS: Mapping[str, str | None] = {"-": None, '""': ""}
