"""The address of a WAL, as users write it: which kind it is, where, and how large."""

from __future__ import annotations

import random
import re
from pathlib import Path
from urllib.parse import parse_qsl

from storage.errors import SettingsError
from storage.wal.block import BlockWalSettings
from storage.wal.memory import MemoryWal
from storage.wal.protocol import WriteAheadLog
from storage.wal.volume import SIZE_MIN, open_file

SIZE_DEFAULT = 1024 * 1024 * 1024
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


async def open_wal(
    uri: str,
    *,
    rng: random.Random,
    node_id: int = 0,
    cluster_id: str = "",
    host_id: str = "",
    settings: BlockWalSettings | None = None,
) -> WriteAheadLog:
    """Open a write-ahead log; the caller then calls `recover()` and `start()`.

    - `block:/path/wal[?size=1GiB]`: a file, made on first use. Its size is fixed then; a later
      `size` is not looked at.
    - `block:/dev/disk/by-id/x[?format=yes]`: a whole disk; `format` lets an empty one be taken.
    - `memory:[?size=...]`: nothing survives the process.

    `rng` makes the id of a new volume. An empty `cluster_id` is not checked. Raises SettingsError,
    StorageError (no room), UnsupportedFormat, WalCorrupted.
    """
    kind, _, rest = uri.partition(":")
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    size = _parse_size(options.pop("size", str(SIZE_DEFAULT)), uri)
    may_format_disk = options.pop("format", "no").lower() in {"yes", "true", "1"}
    if options:
        raise SettingsError(
            f"{uri}: a WAL has no option {', '.join(options)}: known are size, format"
        )
    if kind == "memory" and not place:
        return MemoryWal(capacity=size)
    if kind != "block" or not place:
        raise SettingsError(f"{uri} is no WAL: write block:/path/to/file or memory:")
    return await open_file(
        Path(place),
        size=size,
        may_format_disk=may_format_disk,
        volume_id=rng.randbytes(16),
        node_id=node_id,
        host_id=host_id,
        cluster_id=cluster_id,
        settings=settings,
    )


def _parse_size(text: str, uri: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if size < SIZE_MIN:
        raise SettingsError(f"{uri}: size={text} is not a size of at least {SIZE_MIN} bytes")
    return size & -4096
