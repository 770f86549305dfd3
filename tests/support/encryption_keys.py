"""Keys for tests of encryption: a provider in memory, which a test can take keys from."""

import asyncio
import random

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.encryption.key_provider import FILE, DataKey, WrappedKey
from lakehead.storage.errors import KeyUnavailable, StoreUnavailable


class MemoryKeys:
    """A `KeyProvider` that is shared by the processes of a test."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.keys: dict[str, bytes] = {}
        self.made = self.unwrapped = 0
        self.is_away = self.is_hanging = False
        self.rotate()

    def rotate(self) -> str:
        """Wrap by a new key from now on; return its id."""
        self.current = f"key-{len(self.keys)}"
        self.keys[self.current] = self._rng.randbytes(32)
        return self.current

    async def new_key(self) -> DataKey:
        self._check_here()
        if self.is_hanging:
            await asyncio.get_running_loop().create_future()
        self.made += 1
        plain = self._rng.randbytes(32)
        wrapped = aes_key_wrap(self.keys[self.current], plain)
        return DataKey(plain, WrappedKey(FILE, self.current, wrapped))

    async def unwrap(self, key: WrappedKey) -> bytes:
        self._check_here()
        self.unwrapped += 1
        return self.opened(key)

    def opened(self, key: WrappedKey) -> bytes:
        """Return the data key itself."""
        if key.key_id not in self.keys:
            raise KeyUnavailable(f"there is no key {key.key_id}")
        try:
            return aes_key_unwrap(self.keys[key.key_id], key.wrapped)
        except (InvalidUnwrap, ValueError):
            raise KeyUnavailable(f"the key {key.key_id} is another one") from None

    def data_keys(
        self,
        *,
        writes: bool = True,
        clock: Clock | None = None,
        seed: int = 1,
        is_required: bool = False,
    ) -> DataKeys:
        """Return the data keys of a process that has this provider."""
        return DataKeys(
            {FILE: self},
            writer=self if writes else None,
            clock=clock or SystemClock(),
            rng=random.Random(seed),
            is_required=is_required,
        )

    def _check_here(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the provider of keys does not respond")
