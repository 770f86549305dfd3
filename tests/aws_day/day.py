"""The day: what is looked at first, trial after trial, the end of each, the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.aws_day import cluster_secrets, leftovers, packages, preflight
from tests.aws_day.account import Account
from tests.aws_day.cluster import Cluster, TerraformFailed
from tests.aws_day.day_hosts import Hosts
from tests.aws_day.day_ledger import Ledger
from tests.aws_day.day_report import Report, Result
from tests.aws_day.limits import DayClock, Limits, OverLimit, Spending
from tests.aws_day.packages import Packages
from tests.aws_day.settings import DaySettings
from tests.aws_day.trial import Scene, Trial

_SERVING_S = 1200


@dataclass(slots=True, kw_only=True)
class Day:
    """One run."""

    settings: DaySettings
    account: Account
    trials: Sequence[Trial]
    clock: DayClock
    tell: Callable[[str], object]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of Terraform, beside our own."""
    retries: int | None = None
    spending: Spending = field(init=False)
    ledger: Ledger = field(init=False)
    limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        self.spending = Spending(clock=self.clock)
        self.ledger = Ledger(self.settings.folder / "ledger.jsonl", self.clock)
        self.limits = Limits(
            clock=self.clock,
            spending=self.spending,
            budget=self.settings.budget,
            ends_at=self.clock.monotonic() + self.settings.hours * 3600,
        )

    def run(self) -> int:
        """Run what is not done yet, remove everything, write the report; return the exit status.

        Raises NotReady before anything is made.
        """
        preflight.check_tools(self.settings)
        preflight.check_account(self.account)
        preflight.check_quotas(self.account, self.tell)
        results = {one.name: self._saved(one) for one in self.trials}
        self.spending.pay(sum(one.dollars for one in results.values()))
        todo = [one for one in self.trials if results[one.name].state != "done"]
        hourly = self._priced(todo)
        try:
            if todo:
                built = packages.upload(self.account, self.ledger, self.wheels())
                for trial in todo:
                    results[trial.name] = Result(trial=trial.name)
                    self._try(trial, built, hourly[trial.name], results[trial.name])
        finally:
            self.tell("Removing what is left.")
            left = self._finish()
            report = self._report([results[one.name] for one in self.trials], left)
            self.tell(f"The report: {report.write(self.settings.folder)}")
        return report.status()

    def clean(self) -> int:
        """Remove all of a run, by Terraform where its state is here, then by tag; return the exit
        status: 2 if something is left.
        """
        preflight.check_account(self.account)
        for trial in self.trials:
            try:
                self._end(trial.name)
            except TerraformFailed as error:
                self.tell(f"{trial.name}: Terraform did not remove all: {error}")
        left = self._finish()
        for piece in left:
            self.tell(f"left: {piece}")
        self.tell("Something is left." if left else f"Nothing is left of {self.account.run}.")
        return 2 if left else 0

    def _saved(self, trial: Trial) -> Result:
        folder = self._folder(trial.name)
        return Result.saved(folder) or Result(trial=trial.name)

    def _folder(self, trial: str) -> Path:
        folder = self.settings.folder / trial
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def cluster(self, trial: str) -> Cluster:
        """Return a trial's cluster, whether there is one or not."""
        return Cluster(
            account=self.account,
            trial=trial,
            folder=self._folder(trial).resolve(),
            environment=self.environment,
            retries=self.retries,
        )

    def wheels(self) -> Path:
        """Return a folder of wheels; they are built if they are not there. Raises NotReady."""
        given = self.settings.packages
        folder = given or self.settings.folder / "wheels"
        if given is None and self.settings.dry_run:
            packages.pretend(folder)
        elif not list(folder.glob("lakehead-*.whl")):
            packages.build(folder)
        return folder

    def _priced(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Return each trial's dollars an hour, by a plan of its cluster; nothing is made."""
        hourly = {}
        # A plan looks for the bucket of a wheel in S3, which is not made yet.
        built = Packages(
            wheel="https://none.invalid/lakehead-1.0-py3-none-any.whl", sha256="0" * 64
        )
        for trial in trials:
            self._end(trial.name)  # of a run that was cut
            cluster = self.cluster(trial.name)
            cluster.write(self.arguments(trial, built))
            cluster.init()
            hourly[trial.name], _ = cluster.plan()
        if trials:
            spent = self.spending.dollars()
            dollars = preflight.check_cost(trials, hourly, self.settings.budget, spent)
            for trial in trials:
                self.tell(f"{trial.name}: {trial.cost(hourly[trial.name]):.2f} dollars by estimate")
            self.tell(f"{len(trials)} trials: {dollars:.2f} dollars by estimate")
        return hourly

    def _try(self, trial: Trial, built: Packages, hourly: float, result: Result) -> None:
        began, spent = self.clock.monotonic(), self.spending.dollars()
        self.tell(f"{trial.name}: begins")
        try:
            self.limits.check()
            if spent + trial.cost(hourly) > self.settings.budget:
                raise OverLimit(
                    f"it may cost {trial.cost(hourly):.2f} dollars, and too few are left"
                )
            self.spending.begin(trial.name, hourly)
            self._perform(trial, built, result)
            result.state = "done"
        except OverLimit as error:
            result.state, result.reason = "stopped", str(error)
        except Exception as error:
            # Whatever it was: the next trial has nothing to do with it.
            result.state, result.reason = "failed", f"{type(error).__name__}: {error}"
        except BaseException as error:
            result.state, result.reason = "stopped", type(error).__name__
            raise
        finally:
            try:
                self._end(trial.name)
            except Exception as error:
                # What is left is removed by tag, and named if that fails too.
                result.notes.append(f"Terraform did not remove all: {error}")
            self.spending.end(trial.name)
            result.minutes = (self.clock.monotonic() - began) / 60
            result.dollars = self.spending.dollars() - spent
            result.save(self._folder(trial.name))
            self.tell(f"{trial.name}: {result.state} {result.reason}".rstrip())

    def _perform(self, trial: Trial, built: Packages, result: Result) -> None:
        limits = self.limits.within(trial.minutes * 60)
        cluster = self.cluster(trial.name)
        cluster.write(self.arguments(trial, built))
        _, addresses = cluster.plan()
        for address in addresses:
            self.ledger.write(trial.name, "intended", "resource", address)
        cluster.apply_planned()
        hosts = Hosts(account=self.account, limits=limits)
        outputs = cluster.outputs()
        cluster_secrets.put_values(self.account, cluster.folder, outputs, self.clock.now_ms())
        scene = Scene(
            account=self.account,
            cluster=cluster,
            hosts=hosts,
            ledger=self.ledger,
            limits=limits,
            outputs=outputs,
            figure=result.figures.__setitem__,
            note=result.notes.append,
        )
        for instance in _instances(self.account, trial.name):
            self.ledger.write(trial.name, "made", "instance", instance)
            hosts.wait_ready(instance)
            serving = scene.client(instance, "wait", _SERVING_S, seconds=_SERVING_S + 60)
            hosts.result(serving, _SERVING_S + 120)
        trial.run(scene)

    def arguments(self, trial: Trial, built: Packages) -> dict[str, Any]:
        """Return the arguments of a trial's module."""
        return {
            "instance_type": preflight.INSTANCE_TYPE,
            "lakehead_wheel": built.wheel,
            "package_sha256": built.sha256,
            **trial.arguments(),
            **(trial.not_emulated if self.settings.dry_run else {}),
        }

    def _end(self, trial: str) -> None:
        """Destroy a trial's cluster, if there is a state."""
        cluster = self.cluster(trial)
        if not cluster.is_written:
            return
        bucket = self.account.bucket(trial)
        cluster.destroy(lambda: leftovers.empty_bucket(self.account, bucket))
        for of_trial, kind, name in self.ledger.pending():
            if of_trial == trial and kind == "resource":
                self.ledger.write(trial, "removed", kind, name)

    def _finish(self) -> list[str]:
        try:
            left = leftovers.clean(self.account, self.clock, self.tell)
        except (BotoCoreError, ClientError) as error:
            return [f"what cannot be looked up: {error}"]
        if not left:
            for trial, kind, name in self.ledger.pending():
                self.ledger.write(trial, "removed", kind, name)
        return [str(one) for one in left]

    def _report(self, results: Sequence[Result], left: Sequence[str]) -> Report:
        return Report(
            run=self.account.run,
            account=self.account.account_id,
            region=self.account.region,
            emulated=self.settings.dry_run,
            results=results,
            expected={one.name: one.expected for one in self.trials},
            left=left,
            dollars=self.spending.dollars(),
        )


def _instances(account: Account, trial: str) -> list[str]:
    return [one.name for one in leftovers.leftovers(account, trial) if one.kind == "instance"]
