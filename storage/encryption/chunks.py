"""The format of encrypted objects.

An object is cut into *chunks* of 64 KiB, the last one of what is left, and each is followed by its
tag of 16 bytes (AES-256-GCM, no associated data). A trailer of 512 bytes ends the object::

    @0   salt 32 bytes                @42  length of the key's id u16
    @32  plain size u64               @44  length of the wrapped data key u16
    @40  chunk size u8, as a power    @46  key's id (UTF-8), wrapped data key, zeros
         of two: 16                   @496 version u16 = 1, 2 zero
    @41  provider u8: 1 file, 2 KMS   @500 CRC-32C u32 of what is before
                                      @504 magic "LKHDENCR"

Keys and nonces follow the streaming construction of Tink (AES-GCM-HKDF) and of Hoang, Reyhanitabar,
Rogaway and Vizar (2015): an object has a key of its own, HKDF-SHA-256 of the data key with the
salt, whose info is "lakehead object", a zero byte, the object's key below the cluster's prefix, a
zero byte, and bytes 32 to 500 of the trailer. The 39 bytes of output are the AES key and the first
7 bytes of each nonce; then come the chunk's number u32 and 1 for the last chunk, else 0. So a chunk
that is changed, moved, or of another object fails, and a shorter object too.

Integers are big-endian. The trailer is at the end, where readers begin anyway: they read the index
of an object there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from lakehead.storage.encryption.key_provider import WrappedKey
from lakehead.storage.errors import CorruptObject, SettingsError, UnsupportedFormat

Buffer = bytes | bytearray | memoryview

TRAILER_SIZE = 512
SALT_SIZE = 32
TAG_SIZE = 16
CHUNK_BITS = 16
CHUNK_SIZE = 1 << CHUNK_BITS
_CHUNK_BITS_MAX = 24
_MAGIC = b"LKHDENCR"
_VERSION = 1
_HEAD = struct.Struct(">32sQBBHH")
_VERSION_AT, _CRC_AT, _MAGIC_AT = 496, 500, 504
_ROOM = _VERSION_AT - _HEAD.size
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_NONCE = struct.Struct(">7sIB")
_INFO = b"lakehead object\0"


def is_encrypted(end: Buffer) -> bool:
    """Return true if an object that ends so is encrypted."""
    return len(end) >= TRAILER_SIZE and bytes(end[-len(_MAGIC) :]) == _MAGIC


def stored_size(plain_size: int) -> int:
    """Return the size of an encrypted object, in bytes, by its plain size."""
    return plain_size + -(-plain_size // CHUNK_SIZE) * TAG_SIZE + TRAILER_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """The end of an encrypted object. `plain_size` in bytes."""

    salt: bytes
    plain_size: int
    key: WrappedKey
    chunk_bits: int = CHUNK_BITS

    def encode(self) -> bytes:
        """Return its bytes. Raises SettingsError if the key's id and the wrapped key are too long
        for it.
        """
        key_id = self.key.key_id.encode()
        if len(key_id) + len(self.key.wrapped) > _ROOM:
            raise SettingsError(
                f"the key {self.key.key_id!r}: its id and the wrapped data key have more than "
                f"{_ROOM} bytes"
            )
        head = _HEAD.pack(
            self.salt,
            self.plain_size,
            self.chunk_bits,
            self.key.provider,
            len(key_id),
            len(self.key.wrapped),
        )
        fields = (head + key_id + self.key.wrapped).ljust(_VERSION_AT, b"\0")
        fields += _U16.pack(_VERSION) + bytes(2)
        return fields + _U32.pack(crc32c(fields)) + _MAGIC

    @classmethod
    def decode(cls, name: str, end: Buffer, size: int) -> Trailer:
        """Read the trailer at the end of the object `name` of `size` bytes. Raises CorruptObject,
        UnsupportedFormat.
        """
        data = bytes(end[-TRAILER_SIZE:])
        at = size - TRAILER_SIZE
        if crc32c(data[:_CRC_AT]) != _U32.unpack_from(data, _CRC_AT)[0]:
            raise CorruptObject(name, at, "the trailer of encryption fails its checksum")
        (version,) = _U16.unpack_from(data, _VERSION_AT)
        salt, plain_size, bits, provider, id_length, key_length = _HEAD.unpack_from(data)
        if version > _VERSION or bits > _CHUNK_BITS_MAX:
            raise UnsupportedFormat(
                f"{name} is encrypted in version {version}, newer than this release: upgrade"
            )
        keys = data[_HEAD.size : _VERSION_AT]
        if id_length + key_length > len(keys):
            raise CorruptObject(name, at, "the trailer of encryption has impossible lengths")
        try:
            key_id = keys[:id_length].decode()
        except UnicodeDecodeError:
            raise CorruptObject(name, at, "the key's id is not UTF-8") from None
        wrapped = keys[id_length : id_length + key_length]
        trailer = cls(
            salt=salt,
            plain_size=plain_size,
            chunk_bits=bits,
            key=WrappedKey(provider, key_id, wrapped),
        )
        if trailer.encode() != data:  # the fields are what is authenticated
            raise CorruptObject(name, at, "the trailer of encryption has bytes beside its fields")
        wanted = plain_size + -(-plain_size // (1 << bits)) * TAG_SIZE + TRAILER_SIZE
        if size != wanted:
            raise CorruptObject(
                name, size, f"encrypted, with {size} bytes where its trailer says {wanted}"
            )
        return trailer


class ObjectCipher:
    """Encrypts and decrypts the chunks of the object `name`."""

    __slots__ = ("_aes", "_chunk", "_last", "_name", "_prefix", "size")

    def __init__(self, name: str, trailer: Trailer, data_key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self.size = trailer.plain_size
        self._name = name
        self._chunk = 1 << trailer.chunk_bits
        self._last = max(0, -(-self.size // self._chunk) - 1)
        info = _INFO + name.encode() + b"\0" + trailer.encode()[SALT_SIZE:_CRC_AT]
        secret = HKDF(SHA256(), length=39, salt=trailer.salt, info=info).derive(data_key)
        self._aes = AESGCM(secret[:32])
        self._prefix = secret[32:]

    def encrypt(self, pieces: Sequence[Buffer]) -> list[bytes]:
        """Return the chunks of the concatenation of `pieces`, in order."""
        encrypt = self._aes.encrypt
        return [
            encrypt(self._nonce(number), chunk, None)
            for number, chunk in enumerate(_chunks(pieces, self._chunk))
        ]

    def stored_range(self, start: int, length: int) -> tuple[int, int]:
        """Return the position and the length of the stored chunks that hold plain bytes. Raises
        CorruptObject if the object has fewer.
        """
        if start < 0 or start + length > self.size:
            raise CorruptObject(
                self._name, start, f"wanted {length} bytes, the object has {self.size}"
            )
        if not length:
            return 0, 0
        first, last = start // self._chunk, (start + length - 1) // self._chunk
        stored = self._chunk + TAG_SIZE
        end = min((last + 1) * stored, self.size + (self._last + 1) * TAG_SIZE)
        return first * stored, end - first * stored

    def decrypt_into(self, stored: memoryview, start: int, target: memoryview) -> None:
        """Fill `target` with the plain bytes from `start`; `stored` is what `stored_range` says.

        Raises CorruptObject, which names the chunk.
        """
        from cryptography.exceptions import InvalidTag

        decrypt, chunk = self._aes.decrypt, self._chunk
        number = start // chunk
        skipped = start % chunk
        at = filled = 0
        while filled < len(target):
            data = stored[at : at + chunk + TAG_SIZE]
            try:
                plain = memoryview(decrypt(self._nonce(number), data, None))
            except (InvalidTag, ValueError):
                raise CorruptObject(
                    self._name,
                    number * chunk,
                    f"chunk {number} of {self._last + 1} fails its authentication",
                ) from None
            taken = min(len(plain) - skipped, len(target) - filled)
            target[filled : filled + taken] = plain[skipped : skipped + taken]
            filled += taken
            at += chunk + TAG_SIZE
            number += 1
            skipped = 0

    def _nonce(self, number: int) -> bytes:
        return _NONCE.pack(self._prefix, number, number == self._last)


def _chunks(pieces: Sequence[Buffer], size: int) -> Iterator[Buffer]:
    """Yield the concatenation of `pieces` in chunks; a chunk inside of one piece is not copied."""
    waiting: list[memoryview] = []
    room = size
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            taken = rest[:room]
            rest = rest[len(taken) :]
            waiting.append(taken)
            room -= len(taken)
            if not room:
                yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
                waiting, room = [], size
    if waiting:
        yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
