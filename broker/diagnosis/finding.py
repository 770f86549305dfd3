"""A finding: one thing that was looked at, its verdict, and the advice to the operator."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but slowly, or not in every case."""
    FAILED = "failed"
    """A node does not start, or data is in danger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`check` names the subject, `found` is the state it is in. `advice` says how to change it, and
    is empty if nothing has to change.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(check=check, verdict=Verdict.OK, found=found)


def warning(check: str, found: str, advice: str) -> Finding:
    """Return a finding to look at."""
    return Finding(check=check, verdict=Verdict.WARNING, found=found, advice=advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Return a finding that has to change first."""
    return Finding(check=check, verdict=Verdict.FAILED, found=found, advice=advice)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Return true if one of the findings is a failure."""
    return any(finding.verdict is Verdict.FAILED for finding in findings)
