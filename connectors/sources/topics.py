"""Topics as what is read: the settings that say which."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class TopicsSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="topic",
):
    """The table `[source]` with `type = "topic"`."""

    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    start: Literal["earliest", "latest"] = "earliest"
    """Where to begin in a partition that was never read."""
    when_lost: Literal["fail", "earliest"] = "fail"
    """When retention has removed what was not read yet: refuse, or go on with what there is."""
