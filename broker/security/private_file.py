"""Files of keys and passwords: put in place whole, readable by few."""

import os
from pathlib import Path


def write_private_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file in place whole: a node that reloads it reads the old or the new one.

    Raises OSError.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
