"""The wrapping keys of stored objects, by the ends of the objects: no key is needed to see them."""

import random
from collections.abc import Sequence

from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.chunks import TRAILER_SIZE, Trailer, is_encrypted
from lakehead.storage.encryption.data_keys import data_keys
from lakehead.storage.encryption.key_provider import PROVIDER_NAMES
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.errors import ObjectNotFound
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import for_each

NO_KEY = ""
"""In the place of the name of a key: the object is plain."""
_AT_ONCE = 32


async def stored_keys(store: ObjectStore, keys: Sequence[str]) -> dict[str, str]:
    """Return the wrapping key of each object of a store that does not decrypt, as `provider:id`,
    or `NO_KEY`. Objects that are gone are left out. A request for each object.

    Raises StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    found: dict[str, str] = {}

    async def look(key: str) -> None:
        try:
            end, size = await store.get_suffix(key, TRAILER_SIZE)
        except ObjectNotFound:
            return
        found[key] = NO_KEY
        if is_encrypted(end):
            trailer = Trailer.decode(key, end, size)
            provider = PROVIDER_NAMES.get(trailer.key.provider, str(trailer.key.provider))
            found[key] = f"{provider}:{trailer.key.key_id}"

    await for_each(keys, look, at_once=_AT_ONCE)
    return found


async def newest_key(settings: EncryptionSettings, place: str) -> str:
    """Return the wrapping key by which new objects are encrypted, as `stored_keys` does. Raises
    SettingsError, KeyUnavailable, StoreUnavailable.
    """
    if not settings.is_on:
        return NO_KEY
    settings.require_key()
    keys = data_keys(settings, place, clock=SystemClock(), rng=random.SystemRandom())
    wrapped = (await keys.current()).wrapped
    return f"{PROVIDER_NAMES[wrapped.provider]}:{wrapped.key_id}"
