"""`make aws-day`: what only AWS can show, tried in an account of yours, within a budget.

Status 0: all trials done, all figures as expected, nothing left. 1: a trial fell short.
2: something is left in the account. 3: it did not begin.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from bench.own_environment import NotInstalled
from tests.aws_day.account import Account
from tests.aws_day.cluster import TerraformFailed
from tests.aws_day.day import Day
from tests.aws_day.limits import HastyClock, PatientClock
from tests.aws_day.preflight import NotReady, chosen_zone
from tests.aws_day.settings import DaySettings, NotSaid
from tests.aws_day.trial import Trial
from tests.aws_day.trials import TRIALS
from tests.terraform.emulator import emulator
from tests.terraform.terraform import NotHere, environment


def main() -> int:
    """Run as the environment says; return the exit status."""
    now = datetime.fromtimestamp(PatientClock().now_ms() / 1000, UTC).strftime("%m%d%H%M")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = DaySettings.of(os.environ, now)
        with day_of(settings) as day:
            return day.clean() if settings.clean else day.run()
    except (NotSaid, NotReady, NotHere, NotInstalled, TerraformFailed) as error:
        print(error, file=sys.stderr)
    except (BotoCoreError, ClientError) as error:
        print(f"AWS refuses, or cannot be reached: {error}", file=sys.stderr)
    return 3


@contextlib.contextmanager
def day_of(settings: DaySettings) -> Iterator[Day]:
    """Have a day: in the account, or with DRY_RUN=1 in an emulator that ends with it."""
    if settings.dry_run:
        with (
            tempfile.TemporaryDirectory(prefix="aws-day-") as name,
            emulated(Path(name)) as given,
        ):
            os.environ.update(given)
            yield day_in(settings, given, is_hasty=True)
        return
    yield day_in(settings, {}, is_hasty=False)


@contextlib.contextmanager
def emulated(folder: Path) -> Iterator[dict[str, str]]:
    """Serve an AWS of this machine; give the environment that leads there. Raises NotInstalled and
    NotHere.
    """
    with emulator(folder / "emulator.log") as aws:
        path = f"{aws.programs}:{os.environ['PATH']}"
        yield environment(folder) | aws.environment() | {"PATH": path}
        if faults := aws.faults():
            raise NotReady(f"The emulator itself failed: {faults[:3]}")


def day_in(settings: DaySettings, given: dict[str, str], *, is_hasty: bool) -> Day:
    """Return a day where boto3's environment leads. Raises NotReady and NotSaid."""
    trials = chosen(settings.only)
    zone = chosen_zone(
        settings.region, settings.zone, boto3.client("ec2", region_name=settings.region)
    )
    account = Account(
        account_id=settings.account, region=settings.region, zone=zone, run=settings.run
    )
    return Day(
        settings=replace(settings, zone=zone),
        account=account,
        trials=trials,
        clock=HastyClock() if is_hasty else PatientClock(),
        tell=lambda line: print(line, flush=True),
        environment=given,
        retries=3 if is_hasty else None,
    )


def chosen(only: tuple[str, ...]) -> tuple[Trial, ...]:
    """Return the trials of these names, or all. Raises NotSaid."""
    known = {one.name: one for one in TRIALS}
    if unknown := [name for name in only if name not in known]:
        raise NotSaid(f"ONLY names {', '.join(unknown)}; the trials are {', '.join(known)}.")
    return tuple(one for one in TRIALS if not only or one.name in only)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
