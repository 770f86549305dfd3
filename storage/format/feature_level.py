"""Feature levels: the numbers by which releases that share a cluster understand each other.

A cluster has one level in force (`metadata.version`, as Kafka calls it in KIP-584 and KIP-778), and
a release has a range of levels that it supports. The level in force is the version of each metadata
entry and checkpoint, so a release that does not know the level refuses all that is written under it
with one clear line. `lakehead.storage.metadata.additions` declares the additions of each level.
"""

from lakehead.storage.errors import UnsupportedFormat

METADATA_VERSION = "metadata.version"
"""The name of the feature."""
BASE_LEVEL = 1
"""The level of a cluster whose metadata names none: one that was made before there were levels."""
LOWEST_LEVEL, NEWEST_LEVEL = 1, 2
"""The levels that this release supports. A new cluster begins at the newest one."""


def refuse_newer(key: str, version: int) -> None:
    """Raise UnsupportedFormat for an object of a level that this release does not know."""
    if version > NEWEST_LEVEL:
        raise UnsupportedFormat(
            f"{key} has version {version}, newer than this release reads ({NEWEST_LEVEL}): "
            "upgrade Lakehead"
        )


def unknown_here(key: str, what: str) -> UnsupportedFormat:
    """Return the error for `what` in an object that is whole: this release does not know it, though
    it knows the object's version. A development state between two releases writes such things.
    """
    return UnsupportedFormat(
        f"{key} holds {what}, which this release does not know: written by a newer release, "
        "upgrade Lakehead"
    )
