"""Copies objects from one store to another, several at once, bounded in number and in bytes.

Contents are copied, not stored bytes: each store encrypts by its own settings. An object of the
same name is the same object, so one that the target has is not copied again.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.stream_object import check_item, parse_index
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.stream.reader import ReadBudget, Ticket
from lakehead.storage.tasks import for_each

_AT_ONCE = 16
_BYTES_AT_ONCE = 256 * 1024 * 1024
_RETRY_S = 0.1
_RETRY_MAX_S = 5.0

Progress = Callable[[int, int], None]
"""Called with (bytes that are copied, bytes to copy)."""


def no_progress(_done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(slots=True)
class Copied:
    """The result of copying: objects that the source no longer had, and those whose checksums were
    wrong there (they were copied as they are).
    """

    objects: int = 0
    bytes: int = 0
    gone: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


async def copy_objects(
    source: ObjectStore,
    target: ObjectStore,
    objects: Mapping[str, int],
    rng: random.Random,
    on_progress: Progress = no_progress,
) -> Copied:
    """Copy objects, given by key and size. Raises StoreUnavailable, OutcomeUnknown: what was copied
    by then stays.
    """
    result, budget = Copied(), ReadBudget(_BYTES_AT_ONCE)
    total, done = sum(objects.values()), 0

    async def copy(key: str) -> None:
        nonlocal done
        ticket = Ticket(0, objects[key], is_urgent=True)
        await budget.acquire(ticket)
        try:
            await _copy_one(source, target, key, rng, result)
        finally:
            budget.release(ticket)
        done += objects[key]
        on_progress(done, total)

    on_progress(0, total)
    await for_each(objects, copy, at_once=_AT_ONCE)
    return result


async def _copy_one(
    source: ObjectStore, target: ObjectStore, key: str, rng: random.Random, result: Copied
) -> None:
    try:
        body = await source.get(key)
        if _damage(key, body):  # perhaps on the way
            body = await source.get(key)
            if _damage(key, body):
                result.damaged.append(key)
    except ObjectNotFound:
        result.gone.append(key)
        return
    backoff = Backoff(rng, first_s=_RETRY_S, most_s=_RETRY_MAX_S)
    await put_if_absent(target, key, [body], backoff)
    failpoint("backup_object_put")
    result.objects += 1
    result.bytes += len(body)


def _damage(key: str, body: bytes) -> str:
    """Return what is wrong with the bytes of a stream object; empty if nothing is."""
    view = memoryview(body)
    try:
        for item in parse_index(key, view, len(view)).items:
            check_item(key, item, view[item.position : item.position + item.size])
    except CorruptObject as error:
        return error.reason
    return ""
