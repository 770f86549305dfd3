"""Finding a cluster from what a user writes: a data folder, a store's folder or a store's URI."""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore, open_retrying_store

T = TypeVar("T")

DEFAULT_PATH = "./lakehead-data"
COMMAND_CONFIG = "LAKEHEAD_COMMAND_CONFIG"
"""Variable of --command-config."""

PathOption = Annotated[
    str,
    typer.Option(
        "--path",
        "-p",
        metavar="PATH",
        envvar="LAKEHEAD_PATH",
        help="The cluster: the folder that `lakehead start` writes to, or its store's URI "
        "(s3://bucket/prefix).",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="LAKEHEAD_CONFIG",
        help="Settings of the nodes as TOML: the defaults of topics' configs.",
    ),
]


def store_uri(path: str) -> str:
    """Return the URI of the object store of the cluster at `path`.

    A data folder of `lakehead start` holds its store in `store`. Raises SettingsError for a local
    folder in which there is no cluster.
    """
    if (plain := plain_address(path)) != path:
        return store_uri(plain) + path.removeprefix(plain)
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme and scheme != "file":
        return path
    folder = Path(rest.removeprefix("//") if scheme == "file" else path).expanduser().absolute()
    for candidate in (folder / "store", folder):
        if (candidate / "meta").is_dir():
            return f"file:{candidate}"
    raise SettingsError(
        f"there is no cluster in {folder}: give its folder with --path, "
        "or start one with: lakehead start"
    )


def place_uri(place: str) -> str:
    """Return the URI of a store that need not hold anything yet: of a folder, or as it is given."""
    if (plain := plain_address(place)) != place:
        return place_uri(plain) + place.removeprefix(plain)
    scheme, colon, rest = place.partition(":")
    if colon and "/" not in scheme and scheme != "file":
        return place
    folder = Path(rest.removeprefix("//") if scheme == "file" else place)
    return f"file:{folder.expanduser().absolute()}"


def open_at(uri: str) -> ObjectStore:
    """Return the store at `uri`; a few seconds of trouble are waited out."""
    return open_retrying_store(uri, rng=random.SystemRandom())


def open_cluster(path: str) -> ObjectStore:
    """Return the store of the cluster at `path`."""
    return open_at(store_uri(path))


async def open_log(store: ObjectStore, *, writer: str) -> MetadataLog:
    """Return the cluster's metadata log, read to its end; `writer` names the process in its
    entries.

    Raises SettingsError when the store holds no cluster.
    """
    rng = random.SystemRandom()
    writer_id = f"{writer}/{rng.getrandbits(64):016x}"
    log = await MetadataLog.open(store, writer_id=writer_id, clock=SystemClock(), rng=rng)
    if not log.state.cluster_id:
        raise SettingsError(f"there is no cluster in {store.uri}")
    return log


async def read_state(store: ObjectStore) -> MetadataImage:
    """Return the cluster's newest state. Raises SettingsError when the store holds no cluster."""
    return (await open_log(store, writer="reader")).state


async def holds_cluster(uri: str) -> bool:
    """Return true if the store at `uri` has a cluster in it."""
    store = open_at(uri)
    try:
        return bool(await store.list("meta/"))
    finally:
        await store.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine of a command to its end."""
    return asyncio.run(coroutine)


async def load_state(path: str) -> MetadataImage:
    """Return the newest state of the cluster at `path`."""
    store = open_cluster(path)
    try:
        return await read_state(store)
    finally:
        await store.close()
