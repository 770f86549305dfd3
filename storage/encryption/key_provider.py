"""Data keys in their two forms, and the interface of what wraps them."""

from typing import NamedTuple, Protocol

FILE, KMS = 1, 2
"""The numbers of providers in formats."""
PROVIDER_NAMES = {FILE: "file", KMS: "kms"}
DATA_KEY_BYTES = 32
"""Of AES-256."""


class WrappedKey(NamedTuple):
    """A data key as it is stored: encrypted by the wrapping key `key_id` of a provider."""

    provider: int
    key_id: str
    wrapped: bytes


class DataKey(NamedTuple):
    """A data key for use, and its stored form."""

    plain: bytes
    wrapped: WrappedKey

    def __repr__(self) -> str:
        return f"DataKey({self.wrapped.key_id})"


class KeyProvider(Protocol):
    """The holder of wrapping keys."""

    async def new_key(self) -> DataKey:
        """Return a new data key, wrapped by the present wrapping key. Raises KeyUnavailable,
        StoreUnavailable.
        """

    async def unwrap(self, key: WrappedKey) -> bytes:
        """Return the data key itself. Raises KeyUnavailable (its wrapping key is not here, or
        refuses it), StoreUnavailable.
        """
