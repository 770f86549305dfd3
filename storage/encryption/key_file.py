"""Wrapping keys in a file.

A line for each key, its id and 32 bytes in Base64, with a space between them. The first key wraps
new data keys; the others are kept for what is there. Lines that begin with # are comments. Data
keys are wrapped by AES key wrap (RFC 3394), which detects a wrong key.

The file is read again for each new data key, and for a key that it did not have: so a rotation
needs no restart.
"""

import asyncio
import base64
import binascii
import os
import random
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakehead.storage.encryption.key_provider import DATA_KEY_BYTES, FILE, DataKey, WrappedKey
from lakehead.storage.errors import KeyUnavailable, SettingsError

_SIZE_MAX = 1 << 20
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyFile:
    """The `KeyProvider` of a file."""

    def __init__(self, path: str, *, rng: random.Random) -> None:
        self._path = Path(path).expanduser()
        self._rng = rng

    async def new_key(self) -> DataKey:
        """See `KeyProvider.new_key`."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        key_id, wrapping = next(iter((await self._keys()).items()))
        plain = self._rng.randbytes(DATA_KEY_BYTES)
        return DataKey(plain, WrappedKey(FILE, key_id, aes_key_wrap(wrapping, plain)))

    async def unwrap(self, key: WrappedKey) -> bytes:
        """See `KeyProvider.unwrap`."""
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        wrapping = (await self._keys()).get(key.key_id)
        if wrapping is None:
            raise KeyUnavailable(f"the key {key.key_id!r} is not in {self._path}")
        try:
            return aes_key_unwrap(wrapping, key.wrapped)
        except (InvalidUnwrap, ValueError):
            raise KeyUnavailable(
                f"the key {key.key_id!r} in {self._path} is another one of the same name"
            ) from None

    async def _keys(self) -> Mapping[str, bytes]:
        try:
            return await asyncio.to_thread(read_keys, self._path)
        except SettingsError as error:
            raise KeyUnavailable(str(error)) from None


def read_keys(path: Path) -> dict[str, bytes]:
    """Return the keys of a file by id, in its order. Raises SettingsError; no key is in the
    message.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(_SIZE_MAX).decode("ascii", "replace").splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read the key file {path}: {error.strerror}") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, text = line.strip().partition(" ")
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _ID.fullmatch(key_id) or len(key) != DATA_KEY_BYTES:
            raise SettingsError(
                f"{path}, line {number}: not an id and {DATA_KEY_BYTES} bytes in Base64: make keys "
                "with `lakehead encryption-key`"
            )
        if key_id in keys:
            raise SettingsError(f"{path}, line {number}: there are two keys {key_id!r}")
        keys[key_id] = key
    if not keys:
        raise SettingsError(f"the key file {path} has no key: lakehead encryption-key {path}")
    return keys


def add_key(path: Path, key_id: str, *, rng: random.Random) -> None:
    """Put a new key before those that a file has, or into a new file that its owner alone may
    read; the file is replaced in one step. Raises SettingsError.
    """
    if not _ID.fullmatch(key_id):
        raise SettingsError(f"{key_id!r} is not an id: letters, digits and ._- are, up to 64")
    known = ""
    if path.exists():
        if key_id in read_keys(path):
            raise SettingsError(f"{path} has a key {key_id!r}: give another --id")
        known = path.read_text()
    line = f"{key_id} {base64.b64encode(rng.randbytes(DATA_KEY_BYTES)).decode()}\n"
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            if known:
                stat = path.stat()
                os.fchmod(handle, stat.st_mode & 0o777)
                if (stat.st_uid, stat.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, stat.st_uid, stat.st_gid)
            with os.fdopen(handle, "w") as file:
                file.write(line + known)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"cannot write the key file {path}: {error.strerror}") from None
