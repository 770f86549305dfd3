"""Requests to forget keys, and the certificates of the work.

Objects below `forget/`, each written once, JSON::

    forget/salts/<32 hex digits>.json      the salt of one request's hashes
    forget/<10 digits>/request.json        the request: topic, ends of its partitions, hashes
    forget/<10 digits>/step-<16 hex>.json  an object that is about to be replaced, and by what
    forget/<10 digits>/certificate.json    the result, when nothing is left to do
    forget/<10 digits>/versions-<16 hex>.json  old versions of objects that are about to be deleted

Numbers begin at 1 and have no gap: the writer of `request.json` has the number. A request without a
certificate goes on when it is made again. A certificate has no key, since it is to be kept and
shown: it has HMAC-SHA256 of each key by the salt. The salt is another object, since keys are often
easy to guess (numbers of customers, addresses), and a hash whose salt is known is as good as such a
key. Without the salt the hash says nothing; with it `lakehead forget --check` finds records.

A bucket with versioning has old versions of objects only once these were deleted, which is after
the certificate: each deletion of versions adds a note to it.

`sha256` is over a certificate, or such a note, without `sha256` and `seal`, as JSON with sorted
names and without blanks. `seal` is HMAC-SHA256 of that digest by the cluster's secret
(`NodeSecret`), if there is one: only a reader of the cluster's metadata can make one.
"""

import hashlib
import hmac
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

import msgspec

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import (
    CorruptObject,
    NotFound,
    ObjectNotFound,
    UnsupportedFormat,
)
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent

_T = TypeVar("_T")

PREFIX = "forget/"
FORMAT_VERSION = 1
_SALT_BYTES = 32
_TRIES = 10
_REQUEST = re.compile(rf"{PREFIX}(\d{{10}})/request\.json")
_DIGITS = 10


class ForgottenRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [start, end) of a partition, from which records of the keys go. Later records are not
    meant.
    """

    partition: int
    stream_id: int
    start: int
    end: int


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the keys by their hashes, sorted, and the ranges as they were when it was made.
    `salt` is the name of an object. Times in milliseconds since 1970.
    """

    version: int
    number: int
    cluster_id: str
    topic: str
    topic_id: str
    requested_by: str
    requested_ms: int
    salt: str
    hashes: tuple[str, ...]
    ranges: tuple[ForgottenRange, ...]


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """The name of an object, its size in bytes and SHA-256, both without encryption at rest."""

    key: str
    size: int
    sha256: str


class ForgetStep(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and those that are to take its place; `records` go from `batches`: by partition
    lists of offsets [first, end). `entry` is the metadata log's next one then.
    """

    before: StoredObject
    after: tuple[StoredObject, ...]
    records: int
    batches: Mapping[str, Sequence[tuple[int, int]]]
    entry: int


class ForgottenRows(msgspec.Struct, frozen=True, kw_only=True):
    """A table without the rows: Delta's version from which on they are gone, and how many rows the
    certified run removed from it (an earlier run that was killed may have removed others).
    """

    table: str
    version: int
    rows: int


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate, or a note that belongs to one. See the module for `sha256` and `seal`."""

    sha256: str = ""
    seal: str = ""

    def signed(self, secret: str) -> Self:
        """Return it with its digest, and its seal by the cluster's secret."""
        digest = self.digest()
        return msgspec.structs.replace(self, sha256=digest, seal=_seal(digest, secret))

    def digest(self) -> str:
        """Return what `sha256` is to be."""
        bare = msgspec.structs.replace(self, sha256="", seal="")
        text = msgspec.json.encode(msgspec.to_builtins(bare), order="sorted")
        return hashlib.sha256(text).hexdigest()

    def fault(self, secret: str, name: str = "certificate") -> str:
        """Return why digest or seal are not right, empty if they are."""
        digest = self.digest()
        if digest != self.sha256:
            return f"the {name} was changed: its SHA-256 is another one"
        if self.seal and secret and not hmac.compare_digest(self.seal, _seal(digest, secret)):
            return f"the {name} is not of this cluster: its seal is another one"
        return ""


class Certificate(Signed, frozen=True, kw_only=True):
    """The work that was done for a request. `unreadable` are batches that cannot be read, in words:
    it is not known if they have a record of the keys.
    """

    request: ForgetRequest
    finished_by: str
    finished_ms: int
    records: int
    objects: tuple[ForgetStep, ...]
    tables: tuple[ForgottenRows, ...]
    unreadable: tuple[str, ...]

    def covers(self, topic_id: str, partition: int, first: int, end: int) -> bool:
        """Return whether batches of a partition were changed in the offsets [first, end)."""
        if self.request.topic_id != topic_id:
            return False
        spans = (one.batches.get(str(partition), ()) for one in self.objects)
        return any(start < end and stop > first for each in spans for start, stop in each)


class DeletedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """An old version of an object or file with records of the keys: the URI of the store or table,
    the name there, the bucket's id of the version, and the number of records.
    """

    store: str
    key: str
    version_id: str
    records: int


class DeletedVersions(Signed, frozen=True, kw_only=True):
    """A note of old versions, written before they are deleted."""

    number: int
    deleted_by: str
    deleted_ms: int
    versions: tuple[DeletedVersion, ...]


def _seal(digest: str, secret: str) -> str:
    if not secret:
        return ""
    return hmac.new(bytes.fromhex(secret), digest.encode(), hashlib.sha256).hexdigest()


def key_hash(salt: bytes, key: bytes) -> str:
    """Return the keyed hash of a record's key: HMAC-SHA256 by the salt, in hexadecimal digits."""
    return hmac.new(salt, key, hashlib.sha256).hexdigest()


def key_hashes(salt: bytes, keys: Sequence[bytes]) -> tuple[str, ...]:
    """Return the hashes of keys, sorted."""
    return tuple(sorted({key_hash(salt, key) for key in keys}))


def keys_digest(secret: str, keys: Sequence[bytes]) -> str:
    """Return a digest of sorted keys, by the cluster's secret (`NodeSecret`), in 32 hexadecimal
    digits. It is the same for the same keys, and only a reader of the cluster's metadata can try
    keys with it. Empty without a secret.
    """
    if not secret:
        return ""
    lengths_first = b"".join(len(key).to_bytes(8, "big") + key for key in keys)
    made = hmac.new(bytes.fromhex(secret), b"keys to forget" + lengths_first, hashlib.sha256)
    return made.hexdigest()[:32]


class Certificates:
    """The requests and certificates of a cluster. Methods raise StoreUnavailable, OutcomeUnknown,
    and CorruptObject, UnsupportedFormat where they read.
    """

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng

    async def numbers(self) -> list[int]:
        """Return the numbers of all requests, in order."""
        found = (_REQUEST.fullmatch(one.key) for one in await self._store.list(PREFIX))
        return sorted(int(match[1]) for match in found if match is not None)

    async def request(self, number: int) -> ForgetRequest:
        """Return a request. Raises NotFound."""
        return await self._read(f"{_folder(number)}request.json", ForgetRequest)

    async def certificate(self, number: int) -> Certificate | None:
        """Return the certificate of a request; None: it is not finished."""
        try:
            return await self._read(f"{_folder(number)}certificate.json", Certificate)
        except NotFound:
            return None

    async def salt(self, request: ForgetRequest) -> bytes | None:
        """Return the salt of a request; None: it was deleted."""
        try:
            return bytes.fromhex((await self._read(request.salt, _Salt)).salt)
        except NotFound:
            return None

    async def unfinished(self, topic_id: str, keys: Sequence[bytes]) -> ForgetRequest | None:
        """Return the request about just these keys of a topic that has no certificate yet."""
        for number in await self.numbers():
            request = await self.request(number)
            if request.topic_id != topic_id or await self.certificate(number) is not None:
                continue
            salt = await self.salt(request)
            if salt is not None and key_hashes(salt, keys) == request.hashes:
                return request
        return None

    async def begin(self, request: ForgetRequest, keys: Sequence[bytes]) -> ForgetRequest:
        """Write a request about these keys, and return it with its number, salt and hashes."""
        salt = self._rng.randbytes(_SALT_BYTES)
        name = f"{PREFIX}salts/{self._rng.getrandbits(128):032x}.json"
        await self._write(name, _Salt(salt=salt.hex(), of="keys of one request to forget them"))
        request = msgspec.structs.replace(request, salt=name, hashes=key_hashes(salt, keys))
        while True:
            number = max(await self.numbers(), default=0) + 1
            request = msgspec.structs.replace(request, number=number)
            await self._write(f"{_folder(number)}request.json", request)
            if await self.request(number) == request:  # else another's was first
                return request

    async def note_step(self, number: int, step: ForgetStep) -> str:
        """Write a step, and return its name."""
        name = f"{_folder(number)}step-{self._rng.getrandbits(64):016x}.json"
        await self._write(name, step)
        return name

    async def withdraw_step(self, name: str) -> None:
        """Delete a step that was not committed, and cannot be any more."""
        await self._store.delete([name])

    async def steps(self, number: int, committed: Callable[[str], bool]) -> list[ForgetStep]:
        """Return the steps of a request that were committed, by the names of the objects before
        them. `committed` returns true for an object that the metadata know; of an object that was
        written again after a kill the last step counts.
        """
        found: dict[str, ForgetStep] = {}
        for one in await self._store.list(f"{_folder(number)}step-"):
            step = await self._read(one.key, ForgetStep)
            known = found.get(step.before.key)
            if known is None or _rank(step, committed) > _rank(known, committed):
                found[step.before.key] = step
        return [found[key] for key in sorted(found)]

    async def certify(self, certificate: Certificate) -> Certificate:
        """Write a certificate, unless the request has one; return the one that it has."""
        number = certificate.request.number
        await self._write(f"{_folder(number)}certificate.json", certificate)
        written = await self.certificate(number)
        assert written is not None, "it was just written"
        return written

    async def note_versions(self, note: DeletedVersions) -> None:
        """Write a note of old versions, which are deleted next."""
        name = f"{_folder(note.number)}versions-{self._rng.getrandbits(64):016x}.json"
        await self._write(name, note)

    async def deleted_versions(self, number: int) -> list[DeletedVersions]:
        """Return the notes of old versions of a request."""
        found = await self._store.list(f"{_folder(number)}versions-")
        return [await self._read(one.key, DeletedVersions) for one in found]

    async def _write(self, name: str, value: msgspec.Struct) -> None:
        backoff = Backoff(self._rng, first_s=0.1, most_s=10.0)
        await put_if_absent(self._store, name, [msgspec.json.encode(value)], backoff, tries=_TRIES)

    async def _read(self, name: str, kind: type[_T]) -> _T:
        try:
            body = await self._store.get(name)
        except ObjectNotFound:
            raise NotFound(f"{self._store.uri} has no {name}") from None
        try:
            version = msgspec.json.decode(body, type=_Version)
            if version.version > FORMAT_VERSION:
                raise UnsupportedFormat(
                    f"{name} has version {version.version}, newer than this release reads: "
                    "upgrade Lakehead"
                )
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise CorruptObject(name, 0, str(error)) from None


class _Salt(msgspec.Struct, frozen=True, kw_only=True):
    salt: str
    of: str
    """Beyond 64 bytes an object is encrypted, where the cluster is."""


class _Version(msgspec.Struct, frozen=True):
    version: int = FORMAT_VERSION


def _rank(step: ForgetStep, committed: Callable[[str], bool]) -> tuple[bool, int]:
    return all(committed(one.key) for one in step.after), step.entry


def _folder(number: int) -> str:
    return f"{PREFIX}{number:0{_DIGITS}d}/"
