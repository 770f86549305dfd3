"""What every type of metadata record shares."""

from typing import Annotated

import msgspec

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Whole numbers fit in 64 bits: what a checkpoint holds."""


class RecordBase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What every record shares: its class name is its `type`."""
