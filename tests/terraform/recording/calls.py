"""The recorded needs: distinct permissions with patterns of keys in place of keys, in a file."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.terraform.recording.permissions import Permission, needed
from tests.terraform.recording.s3_door import S3Call

FILE = Path(__file__).resolve().parents[1] / "recorded_calls.json"
_CLUSTER, _TABLES = "lakehead", "tables"


class Need(NamedTuple):
    """A permission that was needed. `context` as sorted pairs."""

    action: str
    resource: str
    context: tuple[tuple[str, str], ...] = ()

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.action} {self.resource} {dict(self.context) or ''}".rstrip()

    @property
    def area(self) -> "Need":
        """What of it a policy tells apart: which of the two prefixes. Which folders below one are
        touched in a run depends on what is due just then.
        """
        return Need(
            self.action,
            "/".join(self.resource.split("/")[:2]),
            tuple((name, value.split("/")[0]) for name, value in self.context),
        )


Needs: TypeAlias = Mapping[Need, tuple[str, ...]]
"""What was needed, and in which runs."""


def pattern(key: str) -> str:
    """Return a key without what differs from run to run: below the cluster's folders and below the
    tables' there is `...`, which is one name among others for a policy.
    """
    parts = [re.sub(r"^meta-before-\d+$", "meta-before-N", part) for part in key.split("/")]
    kept = {_CLUSTER: 2, _TABLES: 1}.get(parts[0], len(parts))
    if len(parts) <= kept or not "".join(parts[kept:]):
        return "/".join(parts)
    return "/".join([*parts[:kept], "..."])


def distinct(calls: Iterable[S3Call]) -> Needs:
    """Return what calls needed, and in which runs. Raises UnknownCall."""
    found: dict[Need, set[str]] = {}
    for call in calls:
        for permission in needed(call):
            found.setdefault(_need(permission), set()).add(call.run)
    return {need: tuple(sorted(runs)) for need, runs in sorted(found.items())}


def _need(permission: Permission) -> Need:
    bucket, slash, key = permission.resource.partition("/")
    context = {
        name: pattern(value) if name == "s3:prefix" else value
        for name, value in permission.context.items()
    }
    return Need(permission.action, f"{bucket}{slash}{pattern(key)}", tuple(sorted(context.items())))


def read_needs() -> dict[str, Needs]:
    """Return what is committed, by who needed it."""
    if not FILE.exists():
        return {}
    return {
        who: {
            Need(one["action"], one["resource"], tuple(sorted(one.get("context", {}).items()))): (
                tuple(one["runs"])
            )
            for one in needs
        }
        for who, needs in json.loads(FILE.read_text()).items()
    }


def write_needs(needs: Mapping[str, Needs]) -> None:
    """Write it, a line for each need."""
    parts = []
    for who, of_one in sorted(needs.items()):
        lines = [
            "    "
            + json.dumps(
                {"action": need.action, "resource": need.resource}
                | ({"context": dict(need.context)} if need.context else {})
                | {"runs": runs}
            )
            for need, runs in sorted(of_one.items())
        ]
        parts.append(f'  "{who}": [\n' + ",\n".join(lines) + "\n  ]")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
