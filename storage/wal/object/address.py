"""The address of an object WAL: `object:`, `object:?budget=50`,
`object:s3://bucket/prefix?size=2GiB`.
"""

from __future__ import annotations

import math
from urllib.parse import urlencode

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store import check_store, open_store
from lakehead.storage.object_store.encrypted import EncryptedStore
from lakehead.storage.wal.block_address import SIZE_DEFAULT, parse_size
from lakehead.storage.wal.object.batching import BatchingSettings
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.object.log import ObjectWal
from lakehead.storage.wal.object.settings import ObjectWalSettings
from lakehead.storage.wal.protocol import WalOwner

_DEFAULT = BatchingSettings()
_HEDGING = HedgingSettings()


async def open_object_wal(
    uri: str,
    place: str,
    options: dict[str, str],
    owner: WalOwner,
    data_keys: DataKeys | None = None,
) -> ObjectWal:
    """Return the log at `place`, the store of its own, or, without one, in the cluster's store.

    Options: `size` (what may wait to be uploaded), `linger_ms` (the least time between the puts of
    small groups), `object_size` (a group that large does not linger), `in_flight` (the most puts at
    once), `budget` (dollars a month for puts, 0: no limit), `put_price` (dollars for 1,000),
    `hedge` (the share of puts that may be sent twice when they are slow, 0: none). Others are the
    store's, which is tried out first; `data_keys` encrypt the objects there, if any. Raises
    SettingsError, StoreUnavailable.
    """

    def number(name: str, default: float, least: float, most: float = math.inf) -> float:
        return _number(uri, name, options.pop(name, None), default, least, most)

    size = parse_size(options.pop("size", str(SIZE_DEFAULT)), uri)
    object_size = int(number("object_size", _DEFAULT.object_size, 1024))
    batching = BatchingSettings(
        object_size=object_size,
        object_size_max=max(_DEFAULT.object_size_max, object_size),
        linger_s=number("linger_ms", _DEFAULT.linger_s * 1000, 0) / 1000,
        in_flight_max=int(number("in_flight", _DEFAULT.in_flight_max, 1)),
        budget=number("budget", _DEFAULT.budget, 0),
        put_price=number("put_price", _DEFAULT.put_price, 0),
    )
    hedging = HedgingSettings(share=number("hedge", _HEDGING.share, 0, 1))
    settings = ObjectWalSettings(capacity=size, batching=batching, hedging=hedging)
    if not place:
        if options:
            raise SettingsError(f"{uri}: an object WAL has no option {', '.join(options)}")
        return ObjectWal(owner.store, owner, settings, are_shared=True)
    store_uri = f"{place}?{urlencode(options)}" if options else place
    store = open_store(store_uri)
    try:
        await check_store(store, rng=owner.rng)
    except BaseException:
        await store.close()
        raise
    if data_keys is not None:
        store = EncryptedStore(store, data_keys)
    return ObjectWal(store, owner, settings, are_shared=False)


def _number(
    uri: str, name: str, text: str | None, default: float, least: float, most: float
) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most or math.isinf(value):
        bound = "" if math.isinf(most) else f" and at most {most:g}"
        raise SettingsError(f"{uri}: {name}={text} is not a number of at least {least:g}{bound}")
    return value
