"""Large objects in parts, put together only if the key is absent; and giving up abandoned parts.

The parts of an upload go out a few at a time, each copied once: what all uploads of a store hold in
memory is bounded. Only the last request makes the object, whole, and it carries the condition.
Blocking: runs in threads.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from random import Random
from typing import Any, NamedTuple

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import StorageError, StoreRefused, StoreUnavailable
from lakehead.storage.event_logger import event_logger
from lakehead.storage.object_store.protocol import Buffer, Owns
from lakehead.storage.object_store.s3.client import control_client
from lakehead.storage.object_store.s3.errors import boto_error
from lakehead.storage.object_store.s3.limits import PART_SIZE
from lakehead.storage.object_store.s3.settings import S3Settings

_log = event_logger("storage.object_store")

PARTS_AT_ONCE = 3
"""One connection to S3 moves some 50 to 90 MB/s; three parts of 16 MiB hold 64 MiB of memory."""
_ATTEMPTS = 5
_PAUSE_S = 0.1
_PAUSE_MAX_S = 5.0


def cut(pieces: Sequence[Buffer], size: int) -> Iterator[bytes]:
    """Yield the concatenation of `pieces` in runs of `size` bytes, the last one shorter."""
    run: list[memoryview] = []
    room = size
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            run.append(rest[:room])
            room -= len(run[-1])
            rest = rest[len(run[-1]) :]
            if not room:
                yield b"".join(run)
                run, room = [], size
    if run:
        yield b"".join(run)


class OldVersion(NamedTuple):
    """A version of an object that is not the newest, by its id, and its size in bytes."""

    key: str
    version_id: str
    size: int


class Multipart:
    """Uploads in parts of one store. Thread-safe."""

    def __init__(self, uri: str, settings: S3Settings) -> None:
        self._uri = uri
        self._settings = settings
        self._client: Any = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._parts = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="s3-part")
        self._memory = threading.BoundedSemaphore(PARTS_AT_ONCE + 1)

    @property
    def client(self) -> Any:
        """boto3's client, made at the first use."""
        with self._lock:
            if self._client is None:
                self._client = control_client(self._settings)
            return self._client

    def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Create the object if the key is absent. Raises as `ObjectStore.create`.

        An upload that fails is given up, so that its parts do not stay behind; what a crash leaves
        is found by `abort_before`.
        """
        upload = self.begin(key)
        try:
            etags = self._put_parts(key, upload, pieces)
            self.complete(key, upload, etags)
        except BaseException:
            self._give_up(key, upload)
            raise

    def begin(self, key: str) -> str:
        """Begin an upload; returns its id. Raises StoreUnavailable."""
        settings = self._settings
        options: dict[str, object] = {}
        if settings.encryption:
            options["ServerSideEncryption"] = settings.encryption
        if settings.kms_key:
            options["SSEKMSKeyId"] = settings.kms_key
        if settings.has_bucket_key is not None:
            options["BucketKeyEnabled"] = settings.has_bucket_key
        begun = self._call("create_multipart_upload", key, False, **options)
        return str(begun["UploadId"])

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Write one part, counted from 1; returns its tag. Repeats what fails without effect."""
        backoff = Backoff(Random(f"{upload}/{number}"), first_s=_PAUSE_S, most_s=_PAUSE_MAX_S)
        attempt = 1
        while True:
            try:
                done = self._call(
                    "upload_part", key, False, UploadId=upload, PartNumber=number, Body=body
                )
                return str(done["ETag"])
            except StoreUnavailable as error:
                if attempt >= _ATTEMPTS or isinstance(error, StoreRefused):
                    raise
            if self._closed.wait(backoff.next_s()):
                raise StoreUnavailable(f"{self._uri}: closed while {key} was written")
            attempt += 1

    def complete(self, key: str, upload: str, etags: Sequence[str]) -> None:
        """Put the parts together if the key is absent. Raises as `ObjectStore.create`."""
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(etags, 1)]
        self._call(
            "complete_multipart_upload",
            key,
            True,
            UploadId=upload,
            IfNoneMatch="*",
            MultipartUpload={"Parts": parts},
        )

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up, freeing its parts; no error if it has ended. Raises
        StoreUnavailable.
        """
        try:
            self._call("abort_multipart_upload", key, False, UploadId=upload)
        except StoreUnavailable as error:
            if "NoSuchUpload" not in str(error):
                raise

    def abort_before(self, before_ms: int, owns: Owns) -> int:
        """Give up every upload below the prefix that began before, of keys that the caller `owns`;
        returns how many there were.

        An upload that is still alive loses no data by it: its writer gets an error, and begins
        again.
        """
        prefix = self._settings.full_key("")
        given_up = 0
        for key, upload, begun_ms in list(self._uploads(prefix)):
            own = key.removeprefix(prefix)
            if begun_ms < before_ms and owns(own):
                self.abort(own, upload)
                given_up += 1
        return given_up

    def old_versions(self, prefix: str) -> list[OldVersion]:
        """See `S3Store.old_versions`: no upload, but boto3's client alone has the requests."""
        own = self._settings.full_key("")
        found: list[OldVersion] = []
        markers: dict[str, str] = {}
        while True:
            page = self._call(
                "list_object_versions",
                None,
                False,
                Prefix=self._settings.full_key(prefix),
                **markers,
            )
            for one in page.get("Versions", []):
                if not one["IsLatest"]:
                    key = str(one["Key"]).removeprefix(own)
                    found.append(OldVersion(key, str(one["VersionId"]), int(one["Size"])))
            if not page.get("IsTruncated"):
                return found
            markers = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }

    def get_version(self, version: OldVersion) -> bytes:
        """See `S3Store.get_version`."""
        found = self._call("get_object", version.key, False, VersionId=version.version_id)
        with found["Body"] as body:
            read: bytes = body.read()
        return read

    def delete_version(self, version: OldVersion) -> None:
        """See `S3Store.delete_version`."""
        self._call("delete_object", version.key, True, VersionId=version.version_id)

    def close(self) -> None:
        """Stop repeating, and let the threads end. A request on its way ends by its timeout."""
        self._closed.set()
        self._parts.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _put_parts(self, key: str, upload: str, pieces: Sequence[Buffer]) -> list[str]:
        sent: list[Future[str]] = []
        try:
            bodies = cut(pieces, PART_SIZE)
            while True:
                self._memory.acquire()
                body = next(bodies, None)
                if body is None:
                    self._memory.release()
                    return [part.result() for part in sent]
                try:
                    part = self._parts.submit(self.put_part, key, upload, len(sent) + 1, body)
                except RuntimeError:
                    raise StoreUnavailable(f"{self._uri}: closed while {key} was written") from None
                part.add_done_callback(lambda _: self._memory.release())
                sent.append(part)
                if any(part.done() and part.exception() for part in sent[-PARTS_AT_ONCE * 2 :]):
                    return [part.result() for part in sent]
        finally:
            # A part that arrives after its upload was given up would stay behind.
            wait([part for part in sent if not part.cancel()])

    def _give_up(self, key: str, upload: str) -> None:
        try:
            if self._closed.is_set():
                raise StoreUnavailable("the store was closed")
            self.abort(key, upload)
        except StorageError as error:
            _log.warning("multipart_upload_not_aborted", key=key, upload=upload, error=str(error))

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        markers: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", None, False, Prefix=prefix, **markers)
            for found in page.get("Uploads", []):
                begun_ms = int(found["Initiated"].timestamp() * 1000)
                yield str(found["Key"]), str(found["UploadId"]), begun_ms
            if not page.get("IsTruncated"):
                return
            markers = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def _call(self, name: str, key: str | None, is_write: bool, **options: object) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        if key is not None:
            options["Key"] = self._settings.full_key(key)
        try:
            return getattr(self.client, name)(Bucket=self._settings.bucket, **options)
        except (BotoCoreError, ClientError) as error:
            raise boto_error(self._uri, key or "", error, is_write=is_write) from None
