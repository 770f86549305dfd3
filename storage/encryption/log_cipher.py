"""Encrypts the records of a write-ahead log, each for itself.

The log of one start of a node has a data key and a salt of its own. A record is encrypted by
AES-256-GCM. Its key is HKDF-SHA-256 of the data key with the salt, whose info is "lakehead wal", a
zero byte, the log's name, and the number of the position's 64 GiB, u64. Its nonce is four zero
bytes and its position, i64, which is never used twice. So no key encrypts more than 64 GiB.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from lakehead.storage.encryption.key_provider import WrappedKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Buffer = bytes | bytearray | memoryview

SALT_SIZE = 32
TAG_SIZE = 16
_WINDOW_BITS = 36
_INFO = b"lakehead wal\0"
_NUMBER = struct.Struct(">Q")
_NONCE = struct.Struct(">4xq")
_HEAD = struct.Struct(">32sBHH")


class LogKey(NamedTuple):
    """The stored form of a log's key."""

    salt: bytes
    key: WrappedKey

    def encode(self) -> bytes:
        """Return its bytes: salt, provider u8, lengths of the key's id and of the wrapped data key
        u16, and both.
        """
        key_id = self.key.key_id.encode()
        head = _HEAD.pack(self.salt, self.key.provider, len(key_id), len(self.key.wrapped))
        return head + key_id + self.key.wrapped

    @classmethod
    def decode(cls, data: bytes) -> LogKey:
        """Read what `encode` made. Raises struct.error, UnicodeDecodeError."""
        salt, provider, id_length, key_length = _HEAD.unpack_from(data)
        key_id = data[_HEAD.size : _HEAD.size + id_length].decode()
        wrapped = data[_HEAD.size + id_length :][:key_length]
        return cls(salt, WrappedKey(provider, key_id, wrapped))


class LogCipher:
    """Encrypts and decrypts the records of the log `name`."""

    __slots__ = ("_aes", "_data_key", "_name", "_salt", "_window")

    def __init__(self, name: bytes, salt: bytes, data_key: bytes) -> None:
        self._name = name
        self._salt = salt
        self._data_key = data_key
        self._window = -1
        self._aes: AESGCM | None = None

    def encrypt(self, position: int, payload: Buffer, header: Buffer) -> bytes:
        """Return the record at `position`, encrypted, and its tag, which covers `header` too."""
        return self._aes_of(position).encrypt(_NONCE.pack(position), payload, header)

    def decrypt(self, position: int, stored: Buffer, header: Buffer) -> bytes | None:
        """Return the payload of the record at `position`; None: it is not what was encrypted."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aes_of(position).decrypt(_NONCE.pack(position), stored, header)
        except (InvalidTag, ValueError):
            return None

    def _aes_of(self, position: int) -> AESGCM:
        window = position >> _WINDOW_BITS
        if self._aes is None or window != self._window:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            info = _INFO + self._name + _NUMBER.pack(window)
            key = HKDF(SHA256(), length=32, salt=self._salt, info=info).derive(self._data_key)
            self._aes, self._window = AESGCM(key), window
        return self._aes
