"""Dollars of a TB: the prices are those of Terraform's estimate, and the arithmetic of peers."""

import re
from pathlib import Path

import pytest

from bench.cluster.cost import PRICES, SIDES, automq_dollars, compaction_dollars, kafka_dollars

TERRAFORM = Path(__file__).resolve().parents[2] / "infra" / "terraform"


@pytest.mark.parametrize("name", ["gp3_gib", "io2_gib", "s3_gib", "cross_zone_gib"])
def test_prices_are_those_of_terraforms_estimate(name: str) -> None:
    text = (TERRAFORM / "variables_beside.tf").read_text()
    found = re.search(rf"^ +{name} += optional\(number, ([0-9.]+)\)$", text, re.MULTILINE)
    assert found is not None
    assert getattr(PRICES, name) == float(found[1])


def test_a_host_costs_as_in_terraforms_estimate() -> None:
    text = (TERRAFORM / "cost.tf").read_text()
    large = re.search(r"m7g = ([0-9.]+)", text)
    share = re.search(r"medium = ([0-9.]+)", text)
    assert large is not None
    assert share is not None
    assert pytest.approx(float(large[1]) * float(share[1])) == PRICES.instance_hour


def test_three_io2_volumes_cost_as_in_aws_calculator() -> None:
    """10 GiB with 500 IOPS are $33.75 a month."""
    assert SIDES[0].wal_dollars == pytest.approx(3 * 33.75)


def test_kafka_pays_for_three_replicas_and_for_what_crosses_zones() -> None:
    """A TB kept for a week is 236 GiB a month, three times on disks that are 70 % full: $80.8. It
    crosses zones 2.67 times at $20.48: $54.6. Hosts are less than a dollar.
    """
    assert kafka_dollars() == pytest.approx(80.8 + 54.6 + 0.7, abs=0.2)


def test_automqs_month_is_set_to_seven_days() -> None:
    """$12,899 for 2,566 TB are $5.03; four more days in S3 cost $3.10 for each TB."""
    assert automq_dollars() == pytest.approx(5.03 + 3.10, abs=0.01)


def test_compaction_writes_each_byte_once_in_parts() -> None:
    """8,192 objects of 128 MiB in eight parts and two more requests each, and as many reads as
    parts: 81,920 puts and 65,536 gets.
    """
    assert compaction_dollars() == pytest.approx(81_920 * 5e-6 + 65_536 * 4e-7)
