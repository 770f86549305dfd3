"""Put-if-absent under a name that one writer alone uses, repeated until its outcome is known."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import ObjectExists, ObjectNotFound, OutcomeUnknown
from lakehead.storage.object_store.protocol import Buffer, ObjectStore


async def put_if_absent(
    store: ObjectStore,
    key: str,
    pieces: Sequence[Buffer],
    backoff: Backoff,
    *,
    tries: int | None = None,
    on_unknown: Callable[[OutcomeUnknown], None] | None = None,
    check_taken: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Create the object `key`, whose name only this caller ever uses.

    A put has three outcomes. *Done*: the object is there. *Lost*: the name is taken, which only an
    earlier try of this call can have done, so the object is there too. *Unknown*: the same bytes
    are put again under the same name, after a pause, until the outcome is one of the other two.
    `on_unknown` is called for each unknown outcome. `check_taken` is called if the name is taken,
    reads what has it, and raises if that is not this caller's after all; ObjectNotFound: the object
    is put again.

    Raises OutcomeUnknown after `tries` tries (None: never), StoreUnavailable, and what
    `check_taken` raises.
    """
    tried = 0
    while True:
        tried += 1
        try:
            await store.create(key, pieces)
            return
        except ObjectExists:
            if check_taken is None:
                return
            with suppress(ObjectNotFound):
                await check_taken()
                return
        except OutcomeUnknown as error:
            if on_unknown is not None:
                on_unknown(error)
            if tried == tries:
                raise
        await backoff.wait()
