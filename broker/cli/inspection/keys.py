"""The wrapping keys of encrypted objects: how much each still protects."""

import random
from collections import Counter

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, run, store_uri
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.progress import waiting
from lakehead.storage.encryption.settings import plain_address
from lakehead.storage.object_store import ObjectMeta, open_store
from lakehead.storage.object_store.encrypted import PLAIN_SIZE_MAX, PREFIXES
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.wrapping_keys import NO_KEY, stored_keys

_COLUMNS = {"key": "KEY", "data": "DATA", "wal": "WAL", "meta": "METADATA", "bytes": "BYTES"}
_OTHERS = ("data", "wal")


def inspect_keys(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Count the objects that each wrapping key protects, and those that are plain.

    A request for each object, and no key is needed. A key without objects may be deleted, once the
    nodes with a block WAL have been started again under a newer one.
    """
    with waiting("reading the keys of the objects"):
        listed, keys = run(_stored(store_uri(path)))
    counts: dict[str, Counter[str]] = {}
    for one in listed:
        if one.key in keys:
            folder = one.key.partition("/")[0]
            count = counts.setdefault(keys[one.key], Counter())
            count[folder if folder in _OTHERS else "meta"] += 1
            count["bytes"] += one.size
    rows = [
        {"key": name if name != NO_KEY else "none"}
        | {column: count[column] for column in _COLUMNS if column != "key"}
        for name, count in sorted(counts.items())
    ]
    show_rows(rows, _COLUMNS, as_json)


async def _stored(uri: str) -> tuple[list[ObjectMeta], dict[str, str]]:
    store = RetryingStore(open_store(plain_address(uri)), rng=random.SystemRandom())
    try:
        found = [
            one
            for prefix in PREFIXES
            for one in await store.list(prefix)
            if one.size > PLAIN_SIZE_MAX
        ]
        return found, await stored_keys(store, [one.key for one in found])
    finally:
        await store.close()
