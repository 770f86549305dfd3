"""What a trial is, and what it is given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.aws_day.account import Account
from tests.aws_day.cluster import Cluster
from tests.aws_day.day_hosts import Begun, Hosts
from tests.aws_day.day_ledger import Ledger
from tests.aws_day.day_report import Expected
from tests.aws_day.experiments import ACTION_MINUTE
from tests.aws_day.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a trial works with: its cluster is applied, and its hosts have their packages."""

    account: Account
    cluster: Cluster
    hosts: Hosts
    ledger: Ledger
    limits: Limits
    outputs: Mapping[str, Any]
    figure: Callable[[str, float], None]
    note: Callable[[str], None]

    @property
    def trial(self) -> str:
        """Name of the trial."""
        return self.cluster.trial

    def client(self, instance: str, what: str, for_s: int, *, seconds: int = 3600) -> Begun:
        """Start the client on a host: `wait` or `load`, for so long. `seconds` limits all of it."""
        given = (what, self.outputs["bootstrap_servers"], self.account.named(self.trial))
        return self.hosts.begin(instance, "client", *given, str(for_s), seconds=seconds)

    def instance(self, slot: str) -> str:
        """Return the instance of a slot, such as a-0."""
        found: str = self.outputs["hosts"][slot]["instance"]
        return found


class Trial(ABC):
    """One question that only AWS has the response to. Independent of all other trials."""

    name: str
    """Of small letters, at most eight: part of names."""
    minutes: int
    """That it may take, with its cluster's making and without its end."""
    expected: Sequence[Expected]
    fault_minutes: float = 0.0
    not_emulated: Mapping[str, Any] = MappingProxyType({})
    """Arguments of a dry run in place of those that the emulator does not know."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of Lakehead's Terraform module, beside those of every trial."""

    @abstractmethod
    def run(self, scene: Scene) -> None:
        """Measure; figures go to scene.figure as soon as they are known. Raises whatever."""

    def hours(self) -> float:
        """Return the hours that its cluster is paid for, with half an hour for its end."""
        return (self.minutes + 30) / 60

    def cost(self, dollars_an_hour: float) -> float:
        """Return dollars of the whole trial, by estimate: whole hours, as Spending counts them."""
        hours = -int(-self.hours() // 1)
        return dollars_an_hour * hours + ACTION_MINUTE * self.fault_minutes
