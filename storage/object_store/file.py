"""An object store in a folder of a local file system: the embedded default.

Durable: file and folder are fsynced before `create` returns. Atomic: a body is written to a file
without a name and linked to its key, which fails if the key exists. On a file system without such
files the body has a temporary name first, in `.tmp` below the root, which listings ignore;
leftovers of a crash there are removed by the first write of a later process, once they are an hour
old.
"""

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lakehead.storage.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from lakehead.storage.kernel_aio import open_aio
from lakehead.storage.object_store.kernel_reads import READS_MAX, SECTOR, KernelReads, whole_sectors
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, Owns, every_key

T = TypeVar("T")

_IOV_MAX = 1024
_TEMPORARY = ".tmp"
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{24}")
_TEMPORARY_AGE_S = 3600
_DIRECT_SIZE_MIN = 1024 * 1024
_DIRECT_BUFFER_SIZE = 512 * 1024
"""Written at once. The write-ahead log may be on the same disk, and one of its writes waits behind
one of these: 4 MiB take several milliseconds.
"""
_JOINED_AT_ONCE = 64
_JOINED_SIZE_MAX = 2048
"""Bytes of a piece, on average, up to which joining pieces first is cheaper."""
_DIRECT_READ_MIN = 256 * 1024
_FOLDERS_NOTED = 16_384
"""Folders whose names are known to be durable: of more, all are flushed once more."""
_OBJECTS_NOTED = 4096
"""Objects of which it is known how much of them was read past the page cache."""
_REFUSES_DIRECT = {errno.EINVAL, errno.EOPNOTSUPP}
_REFUSES_UNNAMED = {errno.EOPNOTSUPP, errno.EISDIR}
_OPEN_FILES = Path("/proc/self/fd")
_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
_ADVICE = {
    errno.EACCES: ": name a folder of this user, or have its owner changed",
    errno.EROFS: ": name a folder on another file system",
    errno.ENOTDIR: ": a part of this path is a file: name another folder",
}
"""The next step of the user, by the error."""


class _DirectRefused(Exception):
    """The file system has no reads past its page cache."""


class _NoThread(StoreUnavailable):
    """The system has no thread left: another one of the pool does the work, if there is one."""


class FileStore:
    """Objects as files below `root`. Blocking calls run in a small pool of threads, made at the
    first use, and long reads in one of their own.
    """

    def __init__(self, root: str | os.PathLike[str], *, threads: int = 8) -> None:
        self._root = Path(root).absolute()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._direct_pool: ThreadPoolExecutor | None = None
        self._kernel_reads: KernelReads | None = None
        self._may_have_kernel_reads = True
        self._swept = False
        self._may_be_direct = True
        self._may_be_unnamed = _OPEN_FILES.is_dir()
        self._may_read_direct = True
        self._folders: set[Path] = set()
        """Folders whose names are durable, and those above them."""
        self._folders_lock = threading.Lock()
        self._unsynced: set[str] = set()
        """Keys of objects that are there, or may be, and whose names may not be durable yet."""
        self._unread: OrderedDict[str, int] = OrderedDict()
        """Bytes of objects that were not read yet; of those that are read past the page cache."""
        self.uri = f"file:{self._root}"

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`. A full disk or a read-only folder is StoreUnavailable."""
        try:
            await self._run(lambda: self._create(key, pieces))
        except _NoThread as error:
            raise OutcomeUnknown(str(error)) from error

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._run(lambda: self._read(key, None, None)[0])

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`. A long range comes past the page cache, until as much as the
        whole object was read: through the cache each page costs more than a copy, and few objects
        are read twice. Those that are come from the cache then, as often as they are read.
        """
        body: Buffer
        if length >= _DIRECT_READ_MIN and self._may_read_direct and self._unread.get(key, 1) > 0:
            body, size = await self._get_past_cache(key, start, length)
            self._note_read(key, length, size)
        else:
            body, size = await self._run(lambda: self._read(key, start, length))
        if len(body) != length:
            raise CorruptObject(key, start, f"wanted {length} bytes, the object has {size}")
        return body

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        filled, size = await self._run(lambda: self._read_into(key, start, target))
        if filled != len(target):
            raise CorruptObject(key, start, f"wanted {len(target)} bytes, the object has {size}")

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        return await self._run(lambda: self._read(key, None, length))

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        return await self._run(lambda: self._list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        if self._kernel_reads is not None:
            for key in keys:
                self._kernel_reads.forget(key)
        await self._run(lambda: self._delete(keys))

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:  # noqa: ARG002
        """See `ObjectStore.abort_uploads`: temporary files that a crash left, which have
        names of their own.
        """
        return await self._run(lambda: self._remove_temporaries(before_ms / 1000))

    async def close(self) -> None:
        """End the threads."""
        kernel_reads, self._kernel_reads = self._kernel_reads, None
        if kernel_reads is not None:
            await kernel_reads.close()
        for pool in (self._pool, self._direct_pool):
            if pool is not None:
                pool.shutdown(wait=True)
        self._pool = self._direct_pool = None

    def _run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="file-store")
        return self._begun(self._pool, work)

    def _begun(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(pool, work)
        except RuntimeError as error:
            raise _NoThread(f"{self.uri}: {error}") from error

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or any(part in ("", ".", "..", _TEMPORARY) for part in parts):
            raise ValueError(f"not an object key: {key!r}")
        return self._root.joinpath(*parts)

    def _create(self, key: str, pieces: Sequence[Buffer]) -> None:
        path = self._path(key)
        linked = False
        try:
            if not self._swept:
                self._sweep_temporaries()
            self._make_folders(path.parent)
            size = sum(len(piece) for piece in pieces)
            with (
                _closing(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)) as folder,
                self._written(path.parent, pieces, size) as source,
            ):
                self._unsynced.add(key)
                with contextlib.suppress(FileExistsError):
                    # With a folder given, the link is to the file and not to /proc's own link.
                    os.link(source, path.name, dst_dir_fd=folder)
                    linked = True
                # A name that is taken is another try's, which may not have come so far yet.
                os.fsync(folder)
                self._unsynced.discard(key)
        except OSError as error:
            if linked:
                raise OutcomeUnknown(f"{path}: {error.strerror}") from error
            raise _explained("write", path, error) from error
        if not linked:
            raise ObjectExists(key)

    @contextlib.contextmanager
    def _written(self, folder: Path, pieces: Sequence[Buffer], size: int) -> Iterator[Path]:
        """Write and fsync a new file, a large one past the page cache where that is possible; yield
        a path that it can be linked from.

        Through the cache, every byte of an object is copied and then written back page by page,
        which costs more than all the rest of an upload; and nothing is about to read it.
        """
        is_direct = size >= _DIRECT_SIZE_MIN and self._may_be_direct
        try:
            file, name = self._opened(folder, os.O_DIRECT if is_direct else 0)
        except OSError as error:
            if not is_direct or error.errno not in _REFUSES_DIRECT:
                raise
            self._may_be_direct = is_direct = False
            file, name = self._opened(folder, 0)
        try:
            if is_direct:
                _write_direct(file, pieces, size)
            else:
                _write_all(file, pieces)
            os.fsync(file)
            yield name or _OPEN_FILES / str(file)
        finally:
            os.close(file)
            if name is not None:
                with contextlib.suppress(OSError):
                    name.unlink(missing_ok=True)

    def _opened(self, folder: Path, flags: int) -> tuple[int, Path | None]:
        """Open a new file, without a name where that is possible: making and removing one is a
        third of what it costs to put a small object.
        """
        if self._may_be_unnamed:
            try:
                return os.open(folder, flags | os.O_TMPFILE | os.O_WRONLY, 0o644), None
            except OSError as error:
                if error.errno not in _REFUSES_UNNAMED:
                    raise
                self._may_be_unnamed = False
        name = self._root / _TEMPORARY / secrets.token_hex(12)
        try:
            return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), name
        except OSError:
            name.unlink(missing_ok=True)  # a refused flag may leave the name behind
            raise

    def _sweep_temporaries(self) -> None:
        folder = self._root / _TEMPORARY
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the file system's own clock, to compare with its files' ages
        self._remove_temporaries(folder.stat().st_mtime - _TEMPORARY_AGE_S)
        self._swept = True

    def _remove_temporaries(self, before_s: float) -> int:
        removed = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._root / _TEMPORARY):
                with contextlib.suppress(FileNotFoundError):
                    # Below a table's root the folder may be another's: ours go by their names.
                    is_own = _TEMPORARY_NAME.fullmatch(entry.name) and entry.is_file(
                        follow_symlinks=False
                    )
                    if is_own and entry.stat().st_mtime < before_s:
                        Path(entry.path).unlink()
                        removed += 1
        return removed

    def _make_folders(self, folder: Path) -> None:
        """Make a folder, and those above it. Below the root also the names of those are made
        durable that are there: another writer may have made them a moment ago.
        """
        if folder in self._folders and folder.is_dir():
            return
        with self._folders_lock:
            unsure = []
            while not folder.is_dir() or (
                folder not in self._folders and self._root in folder.parents
            ):
                unsure.append(folder)
                folder = folder.parent
            for one in reversed(unsure):
                one.mkdir(exist_ok=True)
                _sync_folder(one.parent)
                self._folders.add(one)
            if len(self._folders) > _FOLDERS_NOTED:
                self._folders.clear()

    def _read(self, key: str, start: int | None, length: int | None) -> tuple[bytes, int]:
        with self._opened_to_read(key) as file:
            size = os.fstat(file).st_size
            if length is None:
                start, length = 0, size
            elif start is None:
                start = max(0, size - length)
            return _read_all(file, start, min(length, max(0, size - start))), size

    async def _get_past_cache(self, key: str, start: int, length: int) -> tuple[Buffer, int]:
        """Read whole sectors, by the kernel's queue if it can, else by a thread; through the cache
        if the file system has no other reads.
        """
        kernel_reads = self._own_kernel_reads()
        try:
            if kernel_reads is not None:
                with contextlib.suppress(OSError):  # a thread tries it, and says why if it cannot
                    return await kernel_reads.read(key, start, length)
            if self._direct_pool is None:
                self._direct_pool = ThreadPoolExecutor(READS_MAX, "file-store-read")
            pool = self._direct_pool
            return await self._begun(pool, lambda: self._read_past_cache(key, start, length))
        except _DirectRefused:
            self._may_read_direct = False
            return await self._run(lambda: self._read(key, start, length))

    def _own_kernel_reads(self) -> KernelReads | None:
        """Return the queue of the running event loop, the first one that reads from this store."""
        if self._may_have_kernel_reads:
            self._may_have_kernel_reads = False
            aio = open_aio()
            if aio is not None:
                self._kernel_reads = KernelReads(aio, self._open_direct)
        found = self._kernel_reads
        if found is None or found.loop is not asyncio.get_running_loop():
            return None
        return found if found.is_asynchronous else None

    def _open_direct(self, key: str) -> asyncio.Future[int]:
        return self._run(lambda: self._file_to_read(key, os.O_DIRECT))

    def _read_past_cache(self, key: str, start: int, length: int) -> tuple[Buffer, int]:
        """Read whole sectors into memory that begins as one does. Raises _DirectRefused."""
        first, skipped, target = whole_sectors(start, length)
        filled = 0
        with self._opened_to_read(key, os.O_DIRECT) as file:
            while filled < len(target):
                done = os.preadv(file, [target[filled:]], first + filled)
                filled += done
                if not done or done % SECTOR:
                    break  # the end of the file
            size = os.fstat(file).st_size
        return target[skipped : min(skipped + length, filled)].toreadonly(), size

    def _note_read(self, key: str, length: int, size: int) -> None:
        unread = self._unread
        unread[key] = unread.get(key, size) - length
        unread.move_to_end(key)
        if len(unread) > _OBJECTS_NOTED:
            unread.popitem(last=False)

    def _read_into(self, key: str, start: int, target: memoryview) -> tuple[int, int]:
        with self._opened_to_read(key) as file:
            filled = 0
            while filled < len(target):
                done = os.preadv(file, [target[filled:]], start + filled)
                if not done:
                    break
                filled += done
            return filled, os.fstat(file).st_size

    @contextlib.contextmanager
    def _opened_to_read(self, key: str, flags: int = 0) -> Iterator[int]:
        try:
            with _closing(self._file_to_read(key, flags)) as file:
                yield file
        except OSError as error:
            raise self._unreadable(key, flags, error) from error

    def _file_to_read(self, key: str, flags: int) -> int:
        """Open an object. A reader of one that this process is creating may conclude that it is
        durable: its name is made so first.
        """
        path = self._path(key)
        try:
            file = os.open(path, os.O_RDONLY | flags)
        except OSError as error:
            raise self._unreadable(key, flags, error) from error
        if key in self._unsynced:
            try:
                _sync_folder(path.parent)
            except OSError as error:
                os.close(file)
                raise _explained("read", path, error) from error
            self._unsynced.discard(key)
        return file

    def _unreadable(self, key: str, flags: int, error: OSError) -> Exception:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return ObjectNotFound(key)
        if flags and error.errno in _REFUSES_DIRECT:
            return _DirectRefused()
        return _explained("read", self._path(key), error)

    def _list(self, prefix: str, start_after: str, limit: int | None) -> Sequence[ObjectMeta]:
        folder = prefix.rpartition("/")[0]
        try:
            return list(islice(self._found(folder, prefix, start_after), limit))
        except OSError as error:
            raise _explained("list", self._root / folder, error) from error

    def _found(self, folder: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        root = f"{folder}/" if folder else ""
        for key, path in _walk(self._root / folder, root, start_after):
            if key.startswith(prefix):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                yield ObjectMeta(
                    key=key, size=stat.st_size, modified_ms=stat.st_mtime_ns // 1_000_000
                )

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as error:
                raise StoreUnavailable(
                    f"cannot delete {self._path(key)}: {error.strerror}"
                ) from error


@contextlib.contextmanager
def _closing(file: int) -> Iterator[int]:
    try:
        yield file
    finally:
        os.close(file)


def _explained(what: str, path: Path, error: OSError) -> StoreUnavailable:
    kind = StoreRefused if error.errno in _REFUSALS else StoreUnavailable
    advice = _ADVICE.get(error.errno or 0, "")
    return kind(f"cannot {what} {path}: {error.strerror}{advice}")


def _write_all(file: int, pieces: Sequence[Buffer]) -> None:
    views = [memoryview(piece) for piece in pieces if len(piece)]
    first = 0
    while first < len(views):
        written = os.writev(file, views[first : first + _IOV_MAX])
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]


def _write_direct(file: int, pieces: Sequence[Buffer], size: int) -> None:
    """Write whole sectors that lie on the boundary of one as they are, what is else through a
    buffer that does; the last sector is padded and then cut off again.
    """
    buffer: memoryview | None = None
    filled = position = 0
    for piece in _joined(pieces):
        rest = memoryview(piece).cast("B")  # Arrow's buffers are of signed bytes
        if not filled and _is_aligned(rest):
            sectors = len(rest) // SECTOR * SECTOR
            for start in range(0, sectors, _DIRECT_BUFFER_SIZE):
                taken = min(sectors - start, _DIRECT_BUFFER_SIZE)
                _write_at(file, rest[start : start + taken], position)
                position += taken
            rest = rest[sectors:]
        while rest:
            buffer = buffer or memoryview(mmap.mmap(-1, _DIRECT_BUFFER_SIZE))
            taken = min(len(rest), _DIRECT_BUFFER_SIZE - filled)
            buffer[filled : filled + taken] = rest[:taken]
            filled += taken
            rest = rest[taken:]
            if filled == _DIRECT_BUFFER_SIZE:
                _write_at(file, buffer, position)
                position += filled
                filled = 0
    if buffer and filled:
        _write_at(file, buffer[: -(-filled // SECTOR) * SECTOR], position)
    os.ftruncate(file, size)


def _joined(pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the bytes of the pieces in fewer ones: an object of small batches has a million, and
    each turn of Python's takes longer than a copy of so few bytes.
    """
    for first in range(0, len(pieces), _JOINED_AT_ONCE):
        some = pieces[first : first + _JOINED_AT_ONCE]
        if sum(map(len, some)) <= len(some) * _JOINED_SIZE_MAX:
            yield b"".join(some)
        else:
            yield from some


def _is_aligned(data: memoryview) -> bool:
    """Return true if memory begins where a sector may. The place of memory that cannot be written
    is unknown.
    """
    if data.readonly or len(data) < SECTOR:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % SECTOR == 0


def _write_at(file: int, buffer: memoryview, position: int) -> None:
    written = os.pwrite(file, buffer, position)
    if written != len(buffer):
        raise OSError(errno.ENOSPC, f"only {written} of {len(buffer)} bytes written")


def _read_all(file: int, start: int, length: int) -> bytes:
    body = os.pread(file, length, start)
    if len(body) == length:
        return body
    parts = [body]
    done = len(body)
    while body and done < length:
        body = os.pread(file, length - done, start + done)
        parts.append(body)
        done += len(body)
    return b"".join(parts)


def _walk(folder: Path, prefix: str, start_after: str) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder by their keys, which begin with `prefix`, in the order of the
    keys: those greater than `start_after`.
    """
    try:
        entries = [
            (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry.path)
            for entry in os.scandir(folder)
            if entry.name != _TEMPORARY
        ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, path in sorted(entries):
        key = prefix + name
        if key <= start_after and not (name.endswith("/") and start_after.startswith(key)):
            continue
        if name.endswith("/"):
            yield from _walk(Path(path), key, start_after)
        else:
            yield key, Path(path)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
