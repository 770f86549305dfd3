"""Settings of a sandbox day, from variables of the environment, as `make` passes them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TRUE = {"1", "true", "yes"}


class NotSaid(Exception):
    """A variable is missing or wrong. The message says which, and what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySettings:
    """A run, or the clean-up of one."""

    account: str
    budget: float
    region: str
    zone: str
    hours: float
    run: str
    clean: str
    only: tuple[str, ...]
    packages: Path | None
    dry_run: bool
    folder: Path

    @classmethod
    def of(cls, given: Mapping[str, str], now: str) -> "DaySettings":
        """Read them; `now` is the time as month, day, hour and minute: the name of a new run.

        Raises NotSaid.
        """
        dry_run = given.get("DRY_RUN", "").lower() in _TRUE
        clean = given.get("CLEAN", "")
        run = clean or given.get("RUN", "") or f"day-{now}"
        if not re.fullmatch(r"day-[0-9]{8}", run):
            raise NotSaid("RUN and CLEAN are names of runs, such as day-11230930.")
        account = given.get("ACCOUNT") or ("123456789012" if dry_run else "")
        if not re.fullmatch(r"[0-9]{12}", account):
            raise NotSaid(
                "ACCOUNT is not set: give the id of the AWS account that pays, twelve digits, as "
                "'aws sts get-caller-identity' prints it. Take one that has nothing else."
            )
        return cls(
            account=account,
            budget=_number(given, "BUDGET", "1000" if dry_run else "0" if clean else ""),
            region=(region := given.get("AWS_REGION") or "us-east-1"),
            zone=given.get("ZONE") or (f"{region}a" if dry_run else ""),
            hours=_number(given, "HOURS", "12"),
            run=run,
            clean=clean,
            only=tuple(given.get("ONLY", "").split()),
            packages=Path(given["PACKAGES"]) if given.get("PACKAGES") else None,
            dry_run=dry_run,
            folder=Path(given.get("FOLDER") or "build/aws-day") / run,
        )


def _number(given: Mapping[str, str], name: str, default: str) -> float:
    said = f"{name} is not set to a number: BUDGET=30 is dollars, HOURS=12 hours."
    try:
        value = float(given.get(name) or default)
    except ValueError:
        raise NotSaid(said) from None
    if not 0 <= value < math.inf:  # nan is within no bounds
        raise NotSaid(said)
    return value
