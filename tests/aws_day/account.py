"""The AWS account of a sandbox day: clients, and the tag that all of a run carries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3

TAG = "lakehead-day"
TRIAL_TAG = "lakehead-day-trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where a run is made: an account, a region, one zone. Credentials are boto3's own."""

    account_id: str
    region: str
    zone: str
    run: str
    """Name of the run: its tag, and the beginning of the name of all that it makes."""
    clients: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    calls: set[str] = field(default_factory=set)
    """What boto3 was asked for here, as actions of IAM policies name it."""

    def client(self, service: str) -> Any:
        """Return boto3's client of a service: one for the whole run, as to make one takes long."""
        if service not in self.clients:
            made = boto3.Session(region_name=self.region).client(service)
            made.meta.events.register("before-call", self._note)
            self.clients[service] = made
        return self.clients[service]

    def tags(self, trial: str) -> list[dict[str, str]]:
        """Return what each thing of a trial is tagged with, as most services take it."""
        return [{"Key": TAG, "Value": self.run}, {"Key": TRIAL_TAG, "Value": trial}]

    def named(self, trial: str) -> str:
        """Return the name of a trial's cluster."""
        return f"{self.run}-{trial}"

    def bucket(self, trial: str) -> str:
        """Return the name of a trial's bucket."""
        return f"{self.run}-{trial}-{self.account_id}"

    def _note(self, model: Any, params: Mapping[str, Any], **_: Any) -> None:
        del params
        self.calls.add(f"{model.service_model.signing_name}:{model.name}")
