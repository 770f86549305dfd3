"""What is looked at before anything is made: the account, its limits, tools, the price."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.aws_day.account import Account
from tests.aws_day.cluster import SOURCE
from tests.aws_day.settings import DaySettings
from tests.aws_day.trial import Trial

INSTANCE_TYPE = "m7i.large"
_QUOTAS = {
    ("ec2", "L-1216C47A"): (12, "vCPUs of on-demand instances"),
    ("ec2", "L-34B43A08"): (4, "vCPUs of spot instances"),
}
_VPCS = ("vpc", "L-F678F1CE")


class NotReady(Exception):
    """The day does not begin, and nothing was made. The message says what to do."""


def check_account(account: Account) -> None:
    """See that credentials are of the account that was named. Raises NotReady."""
    found = account.client("sts").get_caller_identity()["Account"]
    if found != account.account_id:
        raise NotReady(
            f"The credentials are of account {found}, and ACCOUNT says {account.account_id}. "
            "Nothing was made."
        )


def check_tools(settings: DaySettings) -> None:
    """See that Terraform is here, and what builds the packages. Raises NotReady."""
    wanted = ["terraform"]
    if not settings.dry_run and settings.packages is None:
        wanted.append("python3.11")
    if absent := [one for one in wanted if shutil.which(one) is None]:
        raise NotReady(f"Not on PATH: {', '.join(absent)}. Nothing was made.")


def chosen_zone(account_region: str, zone: str, ec2: Any) -> str:
    """Return the zone: the one that was asked for, or the first that has S3 Express and the type
    of instance. Raises NotReady.
    """
    offered = ec2.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [INSTANCE_TYPE]}],
    )["InstanceTypeOfferings"]
    places = {one["Location"] for one in offered}
    ids = express_zone_ids()
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    fit: list[str] = [
        one["ZoneName"]
        for one in zones
        if one["ZoneName"] in places and one["ZoneId"] in ids and zone in {"", one["ZoneName"]}
    ]
    if not fit:
        raise NotReady(
            f"No zone of {account_region} has {INSTANCE_TYPE} and S3 Express: choose another "
            "AWS_REGION, or another ZONE. Nothing was made."
        )
    return min(fit)


def express_zone_ids() -> set[str]:
    """Return the zones' ids in which the modules make directory buckets."""
    text = (SOURCE / "variables_wal.tf").read_text()
    (block,) = re.findall(r'variable "express_zone_ids" \{.*?default = \[(.*?)\]', text, re.DOTALL)
    return set(re.findall(r'"([a-z0-9-]+)"', block))


def check_quotas(account: Account, tell: Callable[[str], object]) -> None:
    """See that the account's limits have room. Raises NotReady; a limit that cannot be read is
    told of.
    """
    for (service, code), (wanted, name) in _QUOTAS.items():
        value = _quota(account, service, code, tell)
        if value is not None and value < wanted:
            raise NotReady(
                f"The account's limit of {name} is {value:.0f}, and the trials need {wanted}: "
                f"have quota {code} of {service} raised in {account.region}. Nothing was made."
            )
    value = _quota(account, *_VPCS, tell)
    there = len(account.client("ec2").describe_vpcs()["Vpcs"])
    if value is not None and there + 1 > value:
        raise NotReady(
            f"The region has {there} VPCs of {value:.0f} that it may have: delete one, or take "
            "another region. Nothing was made."
        )


def check_cost(
    trials: Sequence[Trial], hourly: Mapping[str, float], budget: float, spent: float
) -> float:
    """Return dollars of all trials by estimate. Raises NotReady where the budget has less."""
    dollars = sum(one.cost(hourly[one.name]) for one in trials)
    if spent + dollars > budget:
        parts = ", ".join(f"{one.name} {one.cost(hourly[one.name]):.2f}" for one in trials)
        raise NotReady(
            f"The trials cost {dollars:.2f} dollars by estimate ({parts}), {spent:.2f} are spent, "
            f"and BUDGET is {budget:.2f}. Raise it, or run some of them: ONLY='{trials[0].name}'."
        )
    return dollars


def _quota(
    account: Account, service: str, code: str, tell: Callable[[str], object]
) -> float | None:
    quotas = account.client("service-quotas")
    try:
        told = quotas.get_service_quota(ServiceCode=service, QuotaCode=code)
    except (quotas.exceptions.ClientError, quotas.exceptions.NoSuchResourceException) as error:
        tell(f"Quota {code} of {service} is not known: {error}")
        return None
    return float(told["Quota"]["Value"])
