"""Entries of the metadata log for people: as JSON, without secrets."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lakehead.broker.configs.entries import is_secret_config
from lakehead.storage.errors import CorruptObject, NotFound, ObjectNotFound
from lakehead.storage.metadata.entry import PREFIX, entry_key, entry_number
from lakehead.storage.metadata.hidden_fields import without_secrets
from lakehead.storage.object_store import ObjectStore


async def newest_entries(store: ObjectStore, most: int) -> list[bytes]:
    """Return the newest entries as JSON without secrets, at most this many. Raises StorageError."""
    numbers = [entry_number(item.key) for item in await store.list(PREFIX)]
    return [
        msgspec.json.encode(await public_entry(store, number))
        for number in numbers[-most:]
        if number is not None
    ]


async def public_entry(store: ObjectStore, number: int) -> Any:
    """Return an entry without secrets. Raises NotFound, CorruptObject, StoreUnavailable."""
    try:
        body = await store.get(entry_key(number))
    except ObjectNotFound:
        raise NotFound(f"the metadata log has no entry {number}") from None
    try:
        entry = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptObject(entry_key(number), 0, f"not JSON: {error}") from None
    if isinstance(entry, dict):
        without_secrets(entry, is_secret_config)
    return entry


def record_counts(records: Sequence[Any]) -> str:
    """Return the types of an entry's records with their numbers, as text."""
    counts: dict[str, int] = {}
    for record in records:
        name = record["type"] if isinstance(record, dict) else type(record).__name__
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())
