"""Which files below a table's root are the table's, by their names, and whether the root is too.

VACUUM and a rebuild delete files that no version of a table names, so their names have to say
whose they are: what Delta's writers give (`part-…parquet`, in folders of partitions), and nothing
else. That such a file is this table's and not another's follows from the root: it held nothing when
the table was made in it, which the table's first commit records (`OWN_ROOT`).
"""

import re
from collections.abc import Iterable

from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import SettingsError

OWN_ROOT = "lakehead:own-root"
"""The `txn` action of a table whose root held nothing when it was made."""

LOG = "_delta_log/"

_PARTITIONS = r"(?:[^/=]+=[^/]*/)*"
_FILE = re.compile(
    rf"{_PARTITIONS}(?:\.?part-[^/]+\.parquet(?:\.crc)?|deletion_vector_[^/]+\.bin)"
    rf"|_change_data/{_PARTITIONS}cdc-[^/]+\.parquet"
)
_WRITTEN = re.compile(rf"{_PARTITIONS}part-[0-9a-f]{{32}}\.zstd\.parquet")


def is_data_file(name: str) -> bool:
    """Whether a writer of Delta tables gives this name, below a root, to a file with rows."""
    return _FILE.fullmatch(name) is not None


def is_written_here(name: str) -> bool:
    """Whether `lakehead.lake.tables.data_file` gives this name: of 128 random bits."""
    return _WRITTEN.fullmatch(name) is not None


def names_below(root: str) -> list[str]:
    """Return the names of all files below a root. Raises SettingsError where it cannot be listed,
    and the errors of `ObjectStore.list`.
    """
    reader = store_reader(root)
    try:
        return [listed.key for listed in reader.run(reader.store.list(""))]
    except OSError as error:
        raise SettingsError(f"cannot look into {root}: {error.strerror}") from error


def require_own_root(root: str) -> None:
    """Raise SettingsError unless a table that is made at a root has it for itself: there is nothing
    but files that runs of this package have left.
    """
    refuse_others(
        root,
        (name for name in names_below(root) if not is_written_here(name)),
        "a table is made in a folder of its own: name an empty one, or move these files away",
    )


def refuse_others(root: str, names: Iterable[str], advice: str) -> None:
    """Raise SettingsError for files below a root that are not a table's; those of logs are."""
    others = sorted(name for name in names if not name.startswith(LOG))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise SettingsError(f"{root} holds {others[0]}{more}: {advice}")
