"""Cluster features as Kafka versions them (KIP-584): what ApiVersions lists and UpdateFeatures
changes.

Here a release has each feature at one level, or at none: data of several releases is told apart by
the versions inside the formats, so there is no level to raise by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature with the levels that this release knows, and the one in force (0: none)."""

    least: int
    most: int
    level: int


FEATURES: Mapping[str, Feature] = {
    "transaction.version": Feature(least=0, most=2, level=2),
}
"""Every feature, by name."""
