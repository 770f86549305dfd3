"""The data keys of a process: the one that it encrypts with, and those of what it reads."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from lakehead.storage.clock import Clock
from lakehead.storage.encryption.key_file import KeyFile
from lakehead.storage.encryption.key_provider import (
    FILE,
    KMS,
    PROVIDER_NAMES,
    DataKey,
    KeyProvider,
    WrappedKey,
)
from lakehead.storage.encryption.kms_keys import KmsKeys
from lakehead.storage.encryption.settings import KEY_FILE, KMS_KEY, PROVIDER, EncryptionSettings
from lakehead.storage.errors import KeyUnavailable, StoreUnavailable, UnsupportedFormat
from lakehead.storage.event_logger import event_logger

_log = event_logger("storage.encryption")

LIFE_S = 3600.0
"""A data key encrypts what a process writes within an hour; then it gets another one."""
LIFE_MAX_S = 6 * LIFE_S
"""The same while the provider of keys does not respond."""
_RENEWAL_S = 2.0
"""Time limit of a renewal while there is a key that may go on: a put of a log waits for it."""
_RETRY_S = 60.0
_KEPT = 16_384
"""Unwrapped keys in memory: more than a cluster of 10 nodes makes in two months."""


@dataclass(slots=True)
class DataKeyStats:
    """Counters since the start of the process. `cached`: keys in memory now."""

    made: int = 0
    unwrapped: int = 0
    make_failed: int = 0
    unwrap_failed: int = 0
    hits: int = 0
    cached: int = 0
    plain_refused: int = 0


class DataKeys:
    """Wraps and unwraps by `providers`; new keys come from `writer`, None: there are none, and
    nothing is encrypted. `rng` draws salts, and keys that a file wraps: of the system, for secrets.
    `is_required`: plain data are refused.
    """

    def __init__(
        self,
        providers: Mapping[int, KeyProvider],
        *,
        writer: KeyProvider | None,
        clock: Clock,
        rng: random.Random,
        is_required: bool = False,
    ) -> None:
        self.rng = rng
        self.is_required = is_required
        self.stats = DataKeyStats()
        self._providers = providers
        self._writer = writer
        self._clock = clock
        self._current: DataKey | None = None
        self._renew_at = self._ends_at = 0.0
        self._renewing = asyncio.Lock()
        self._unwrapped: OrderedDict[WrappedKey, bytes] = OrderedDict()
        self._unwrapping: dict[WrappedKey, asyncio.Lock] = {}

    @property
    def is_on(self) -> bool:
        """Return true if new data are encrypted."""
        return self._writer is not None

    @property
    def can_read(self) -> bool:
        """Return true if there may be keys for encrypted data."""
        return bool(self._providers)

    async def current(self) -> DataKey:
        """Return the key that encrypts now. Raises KeyUnavailable, StoreUnavailable."""
        if self._current is None or self._clock.monotonic() >= self._renew_at:
            async with self._renewing:
                if self._current is None or self._clock.monotonic() >= self._renew_at:
                    self._current = await self._renewed()
        return self._current

    async def unwrap(self, key: WrappedKey) -> bytes:
        """Return a data key itself. Raises KeyUnavailable, StoreUnavailable."""
        lock = self._unwrapping.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                plain = self._unwrapped.get(key)
                if plain is None:
                    plain = await self._requested(key)
                else:
                    self.stats.hits += 1
                self._keep(key, plain)
                return plain
        finally:
            self._unwrapping.pop(key, None)

    async def _requested(self, key: WrappedKey) -> bytes:
        try:
            plain = await self._provider(key).unwrap(key)
        except (StoreUnavailable, UnsupportedFormat):
            self.stats.unwrap_failed += 1
            raise
        self.stats.unwrapped += 1
        return plain

    async def _renewed(self) -> DataKey:
        assert self._writer is not None, "encryption is on"
        now = self._clock.monotonic()
        may_go_on = self._current is not None and now < self._ends_at
        try:
            async with asyncio.timeout(_RENEWAL_S if may_go_on else None):
                key = await self._writer.new_key()
        except (StoreUnavailable, TimeoutError) as error:
            self.stats.make_failed += 1
            if self._current is None or not may_go_on:
                raise
            _log.warning("data_key_not_renewed", error=str(error) or "no response in time")
            self._renew_at = now + _RETRY_S
            return self._current
        self.stats.made += 1
        self._renew_at, self._ends_at = now + LIFE_S, now + LIFE_MAX_S
        self._keep(key.wrapped, key.plain)
        return key

    def _keep(self, key: WrappedKey, plain: bytes) -> None:
        self._unwrapped[key] = plain
        self._unwrapped.move_to_end(key)
        if len(self._unwrapped) > _KEPT:
            self._unwrapped.popitem(last=False)
        self.stats.cached = len(self._unwrapped)

    def _provider(self, key: WrappedKey) -> KeyProvider:
        if key.provider not in PROVIDER_NAMES:
            raise UnsupportedFormat(
                f"a data key is wrapped by the provider {key.provider}, which this release does "
                "not know: upgrade Lakehead"
            )
        provider = self._providers.get(key.provider)
        if provider is None:
            what = "file" if key.provider == FILE else "AWS KMS"
            setting = KEY_FILE if key.provider == FILE else f"{PROVIDER}=kms, or {KMS_KEY}"
            raise KeyUnavailable(f"encrypted by the key {key.key_id!r} in {what}: set {setting}")
        return provider


def data_keys(
    settings: EncryptionSettings, place: str, *, clock: Clock, rng: random.Random
) -> DataKeys:
    """Return the data keys of a process by its settings. `place` is the cluster's bucket and
    prefix. Nothing is read or requested before the first use.
    """
    providers: dict[int, KeyProvider] = {}
    if settings.key_file:
        providers[FILE] = KeyFile(settings.key_file, rng=rng)
    if settings.uses_kms:
        providers[KMS] = KmsKeys(settings.kms_key, place)
    writer = {"none": None, "file": providers.get(FILE), "kms": providers.get(KMS)}
    return DataKeys(
        providers,
        writer=writer[settings.provider],
        clock=clock,
        rng=rng,
        is_required=settings.is_required,
    )
