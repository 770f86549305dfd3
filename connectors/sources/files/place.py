"""Places of files: a local folder or a bucket, listed and read by ranges through obstore."""

import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import obstore
from obstore.exceptions import PreconditionError

from lakehead.connectors.runtime.errors import BadInput, InputLost, InputReplaced
from lakehead.connectors.settings import COMPRESSIONS, FORMATS, Compression, Format
from lakehead.storage.errors import ObjectNotFound, SettingsError, StoreUnavailable
from lakehead.storage.object_store.s3.errors import CLIENT_ERRORS, obstore_error

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import LocalStore, S3Store

T = TypeVar("T")

READ_BYTES = 4 * 1024 * 1024
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5
_PIECES = re.compile(r"(\*\*/|\*\*|\*)")
_UNREADABLE = re.compile(r"#\d+$")
"""Names that obstore's local store keeps for its own unfinished files."""
_MEANINGS = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*"}


class FoundFile(msgspec.Struct, frozen=True):
    """A file as a listing shows it."""

    path: str
    """Below the place."""
    uri: str
    """For people, and the name that positions are kept under."""
    size: int
    modified_ms: int
    etag: str | None
    """A local file has one of its inode, time and size."""


class FilePlace:
    """A folder or a prefix of a bucket. Opened at the first use."""

    def __init__(self, path: str, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._store: LocalStore | S3Store | None = None
        scheme = re.match(r"^([a-z][a-z0-9+.-]*):", path)
        if scheme is not None and scheme[1] not in {"file", "s3"}:
            raise SettingsError(
                f"source.path: {path}: there are local paths, file:/path and s3://bucket/prefix"
            )
        self._is_local = scheme is None or scheme[1] == "file"
        place, self._options = path, ""
        if self._is_local:
            local = Path(path.removeprefix("file:")).expanduser().absolute()
            place = local.as_posix()
        elif "?" in path:
            place, _, options = path.partition("?")
            self._options = f"?{options}"
        is_file = self._is_local and Path(place).is_file()
        self._set_glob(place.rstrip("/"), is_file=is_file)

    def _set_glob(self, place: str, *, is_file: bool) -> None:
        self._root, self._glob = _split(place, is_file=is_file)
        self._matches = re.compile(_pattern(self._glob)).fullmatch

    @property
    def name(self) -> str:
        """The pattern of its files, for people."""
        return f"{self._root}/{self._glob}".rstrip("/")

    def list(self) -> Iterator[FoundFile]:
        """Yield the files that are meant, in any order.

        Those below the place whose name, or that of a folder, begins with a dot or an underscore
        are not: so writers of many systems name what is not finished. Raises StorageError,
        SettingsError.
        """
        if self._is_local and not Path(self._root).is_dir():
            raise SettingsError(f"source.path: there is no folder {self._root}")
        found = self._repeated(lambda: list(obstore.list(self._opened())), self._root)
        if not any(found) and not self._glob and self._is_one_object():
            found = self._repeated(lambda: list(obstore.list(self._opened())), self._root)
        metas = chain.from_iterable(found)
        yield from filter(self._is_meant, map(self._found, metas))
        if self._is_local:
            yield from filter(self._is_meant, self._unreadable())

    def _found(self, meta: "ObjectMeta") -> FoundFile:
        path = str(meta["path"])
        return FoundFile(
            path=path,
            uri=f"{self._root}/{path}",
            size=int(meta["size"]),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
            etag=meta["e_tag"],
        )

    def _is_meant(self, file: FoundFile) -> bool:
        parts = file.path.split("/")
        return self._matches(file.path) is not None and not any(p[0] in "._" for p in parts if p)

    def _unreadable(self) -> Iterator[FoundFile]:
        """Yield local files that no listing shows, so that they are an error of their own."""
        for folder, _, names in os.walk(self._root):
            for name in filter(_UNREADABLE.search, names):
                place = Path(folder, name)
                try:
                    stat = place.stat()
                except FileNotFoundError:
                    continue
                path = place.relative_to(self._root).as_posix()
                modified_ms = int(stat.st_mtime * 1000)
                yield FoundFile(path, place.as_posix(), stat.st_size, modified_ms, None)

    def _is_one_object(self) -> bool:
        """Find out whether a path in a bucket without a known suffix is that of one object; then
        look in the prefix that it lies in from now on.
        """
        bucket_and_key = self._root.partition("://")[2]
        if self._is_local or "/" not in bucket_and_key:
            return False
        parent, _, name = self._root.rpartition("/")
        prefix, self._store = self._root, None
        self._root = parent
        try:
            self._repeated(lambda: obstore.head(self._opened(), name), name)
        except ObjectNotFound:
            self._root, self._store = prefix, None
            return False
        self._set_glob(prefix, is_file=True)
        return True

    def read(self, file: FoundFile, start: int, end: int, *, may_grow: bool = False) -> bytes:
        """Return bytes of a file; fewer if it has become shorter.

        Raises InputReplaced if it is not the one that was listed; one that `may_grow` may be
        written to meanwhile, where it is the same inode. Raises BadInput, InputLost, StorageError.
        """
        if self._is_local and _UNREADABLE.search(file.path):
            raise BadInput(
                f"{file.uri}: names that end with # and a number are kept for files that are not "
                "finished: rename it"
            )
        options: GetOptions = {"range": (start, end)}
        is_appended_to = may_grow and self._is_local
        if file.etag and not is_appended_to:
            options["if_match"] = file.etag

        def read() -> bytes:
            found = obstore.get(self._opened(), file.path, options=options)
            if is_appended_to and _inode(found.meta["e_tag"]) != _inode(file.etag):
                raise PreconditionError
            return bytes(found.bytes())

        try:
            return self._repeated(read, file.path)
        except PreconditionError:
            raise InputReplaced(
                f"{file.uri} was written or replaced while it was read: run again when it is whole "
                "(source.settle_seconds leaves alone what was written just now)"
            ) from None
        except ObjectNotFound:
            raise InputLost(f"{file.uri} was removed while it was read") from None

    def _repeated(self, call: Callable[[], T], key: str) -> T:
        """Wait out some seconds of trouble."""
        for attempt in range(_ATTEMPTS):
            try:
                return call()
            except PreconditionError:
                raise
            except FileNotFoundError:
                raise ObjectNotFound(key) from None
            except CLIENT_ERRORS as error:
                failure = obstore_error(self._root, key, error)
                if attempt == _ATTEMPTS - 1 or not isinstance(failure, StoreUnavailable):
                    raise failure from None
                self._pause(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError

    def _opened(self) -> "LocalStore | S3Store":
        if self._store is None:
            if self._is_local:
                from obstore.store import LocalStore

                self._store = LocalStore(self._root)
            else:
                from lakehead.storage.object_store.s3.client import object_client
                from lakehead.storage.object_store.s3.settings import parse_uri

                self._store = object_client(parse_uri(self._root + self._options))
        return self._store


class PlacedFile(io.RawIOBase):
    """A file of a place up to the size that it was listed with, for what reads Python's files."""

    def __init__(self, place: FilePlace, file: FoundFile, *, may_grow: bool = False) -> None:
        super().__init__()
        self._place = place
        self.file = file
        self._may_grow = may_grow
        self._at = 0
        self._pieces: deque[tuple[int, bytes]] = deque(maxlen=2)

    def held(self, start: int, end: int) -> bytes | None:
        """Return bytes that were read just now; None if they would have to be read again."""
        first = self._pieces[0][0] if self._pieces else end
        parts = [data[max(0, start - at) : max(0, end - at)] for at, data in self._pieces]
        found = b"".join(parts)
        return found if first <= start and len(found) == end - start else None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as the file goes."""
        end = min(self._at + len(buffer), self.file.size)
        if end <= self._at:
            return 0
        data = self._place.read(self.file, self._at, end, may_grow=self._may_grow)
        if not data:
            raise InputReplaced(f"{self.file.uri} became shorter while it was read: run again")
        buffer[: len(data)] = data
        self._pieces.append((self._at, data))
        self._at += len(data)
        return len(data)


def _inode(etag: str | None) -> str:
    return (etag or "").partition("-")[0]


def _split(place: str, *, is_file: bool) -> tuple[str, str]:
    """Return the folder to list and what below it is meant: a pattern, a name, or all."""
    parts = place.split("/")
    first = next((n for n, part in enumerate(parts) if "*" in part), len(parts))
    if first == len(parts) and (is_file or file_kind(place)[0] is not None):
        first -= 1
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])


def _pattern(glob: str) -> str:
    """Return the regular expression of a pattern: it, and all that is below what it means."""
    pieces = (_MEANINGS.get(piece) or re.escape(piece) for piece in _PIECES.split(glob))
    meaning = "".join(pieces)
    return rf"{meaning}(?:/.*)?" if meaning else r".*"


def file_kind(path: str) -> tuple[Format | None, Compression | None]:
    """Return format and compression by the suffixes of a name; None for each without one."""
    pure = PurePosixPath(path.lower())
    compression = COMPRESSIONS.get(pure.suffix)
    if compression is not None:
        pure = pure.with_suffix("")
    return FORMATS.get(pure.suffix), compression
