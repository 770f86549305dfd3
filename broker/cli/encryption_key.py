"""`lakehead encryption-key`: wrapping keys in a file, for `encryption.key.provider=file`."""

import random
from pathlib import Path
from typing import Annotated

import typer

from lakehead.broker.security.development_certs import utc
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.key_file import add_key, read_keys


def encryption_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys.")],
    key_id: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="Name of the key. Default: the time, in UTC."),
    ] = "",
) -> None:
    """Add a key to a file of keys for encryption at rest.

    The file is made if there is none.

    The new key is the first in the file: it wraps the data keys that are made from now on. The
    others stay, and decrypt what they have encrypted. Nodes read the file again within an hour, so
    give it to every reader at once. Data are lost without the key that encrypts them: keep a copy
    of the file apart from the cluster.
    """
    file = file.expanduser().absolute()
    key_id = key_id or utc(SystemClock().now_ms()).strftime("%Y%m%dT%H%M%SZ")
    add_key(file, key_id, rng=random.SystemRandom())
    others = len(read_keys(file)) - 1
    typer.echo(f"{file}: key {key_id} is the first, before {others} others")
