"""What every connector can be told about how it runs."""

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,200}$")]
"""Part of a topic's name, a group id and a transactional id."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[run]`."""

    transaction_bytes: Annotated[int, Meta(ge=1)] = 16 * 1024 * 1024
    """A transaction is committed when it has this many bytes of keys and values ..."""
    transaction_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """... or is this old."""
    timeout_seconds: Annotated[float, Meta(ge=1, le=900)] | None = None
    """After this long the cluster aborts a transaction by itself: what a killed run left open keeps
    readers of committed records waiting so long, unless it is run again. 60, and 900 where a
    transaction cannot be cut (delta).
    """
    poll_seconds: Annotated[float, Meta(gt=0)] = 5.0
    """With --follow: how long to wait before looking for more."""
    retry_seconds: Annotated[float, Meta(ge=0)] = 120.0
    """How long to wait for a cluster that does not answer, and repeat aborted transactions."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """How long a run that is stopped waits for a cluster that does not answer."""
    positions_topic: Name | None = None
    """Where positions are kept: lakehead-connect-NAME. One topic for each connector, so that none
    waits for the transactions of another."""
