"""Check an S3 bucket before a node trusts it: every kind of request that the node will make, once.

A missing permission or a store that ignores conditions would show itself late otherwise, as an
outage or as lost data. Some twenty-five requests, under a key that is deleted again.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

from lakehead.storage.errors import (
    ObjectExists,
    OutcomeUnknown,
    SettingsError,
    StorageError,
    StoreRefused,
    StoreUnavailable,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.s3.client import NO_CREDENTIALS
from lakehead.storage.object_store.s3.errors import boto_error
from lakehead.storage.object_store.s3.store import S3Store
from lakehead.storage.tasks import TaskScope

_log = event_logger("storage.object_store")

PREFIX = "check/"
_RACERS = 8
_BODY = b"Lakehead checks what this bucket can do. This object may be deleted.\n"
_WRONG, _RIGHT = "-wrong-crc", "-right-crc"
_WRONG_CRC = "AAAAAAAAAAA="
_ELSEWHERE = {
    *("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
    *("301", "307"),
}
_CREDENTIALS = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"),
    *("TokenRefreshRequired", "InvalidClientTokenId", "XAdminUserNotFound", "401"),
}


async def check_store(store: ObjectStore, *, rng: random.Random) -> None:
    """Try out an S3 store; other stores need no check.

    Raises SettingsError, one line: what is wrong (no such bucket, another region, credentials,
    permissions by name, no conditional put); StoreUnavailable if it cannot be reached.
    """
    if isinstance(store, S3Store):
        await _Check(store, rng).run()


class _Check:
    def __init__(self, store: S3Store, rng: random.Random) -> None:
        self._store = store
        self._retrying = RetryingStore(store, rng=rng)
        self._key = f"{PREFIX}{rng.getrandbits(64):016x}"
        self._missing: dict[str, None] = {}

    async def run(self) -> None:
        await self._retrying.repeat(PREFIX, lambda: self._store.in_thread(self._look))
        if await self._may("s3:PutObject", self._put_once):
            await self._may("s3:GetObject", self._read)
            await self._may("s3:ListBucket", self._list)
            if self._store.may_multipart:
                await self._may("s3:PutObject", self._put_parts)
            await self._may("s3:PutObject", self._put_checksums)
            keys = [self._key, self._key + _WRONG, self._key + _RIGHT]
            await self._may("s3:DeleteObject", lambda: self._retrying.delete(keys))
        await self._may(
            "s3:ListBucketMultipartUploads", lambda: self._retrying.abort_uploads(before_ms=0)
        )
        if self._missing:
            raise SettingsError(
                f"{self._store.uri}: the credentials lack {', '.join(self._missing)} "
                f"(bucket {self._store.settings.bucket}, "
                f"keys {self._store.settings.full_key('*')})"
            )

    async def _may(self, permission: str, call: Callable[[], Awaitable[object]]) -> bool:
        """Carry out one step; note the permission that it lacks. Other trouble ends the check."""
        try:
            await call()
        except StoreRefused as error:
            if "kms" in str(error).lower():
                permission = "kms:GenerateDataKey and kms:Decrypt on the key"
            elif ": 403" not in str(error):
                raise SettingsError(str(error)) from None
            self._missing[permission] = None
            return False
        return True

    def _look(self) -> None:
        """Request the bucket, to learn the fault of the place or of the credentials."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        settings = self._store.settings
        client = self._store.multipart.client
        place = settings.endpoint or "AWS"
        try:
            response = client.list_objects_v2(
                Bucket=settings.bucket, Prefix=settings.full_key(PREFIX), MaxKeys=1
            )
        except NoCredentialsError:
            raise SettingsError(f"{self._store.uri}: {NO_CREDENTIALS}") from None
        except ClientError as error:
            self._raise_refusal(error, place)
        except BotoCoreError as error:
            raise StoreUnavailable(
                f"{self._store.uri}: cannot reach {place}: {str(error)[:200]}"
            ) from None
        else:
            region = response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", "")
            if region and region != client.meta.region_name:
                raise self._elsewhere(region)

    def _raise_refusal(self, error: Any, place: str) -> None:
        found = error.response["Error"]
        code = str(found.get("Code", ""))
        said = f"{code}: {found.get('Message', '')}"
        bucket = self._store.settings.bucket
        if code == "NoSuchBucket":
            raise SettingsError(f"there is no bucket {bucket} at {place}: create it first")
        if code in _ELSEWHERE:
            headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
            raise self._elsewhere(found.get("Region") or headers.get("x-amz-bucket-region", ""))
        if code in _CREDENTIALS:
            raise SettingsError(f"{place} does not accept the credentials: {said}")
        if code == "RequestTimeTooSkewed":
            raise SettingsError(f"the clock of this machine is wrong: set it ({said})")
        if code in {"AccessDenied", "403"}:
            self._missing["s3:ListBucket"] = None
            return
        raise boto_error(self._store.uri, PREFIX, error)

    def _elsewhere(self, region: str) -> SettingsError:
        settings = self._store.settings
        return SettingsError(
            f"the bucket {settings.bucket} is in the region {region or 'of another name'}, not in "
            f"{settings.region or 'the default one'}: set AWS_REGION, or add ?region= to the store"
        )

    async def _put_once(self) -> None:
        """Several puts of one absent key at once, and another one: exactly one may succeed."""
        crashes: list[BaseException] = []
        scope = TaskScope(lambda _, error: crashes.append(error))
        racers = [
            scope.spawn(self._wins(), name=f"check {racer}", is_awaited=True)
            for racer in range(_RACERS)
        ]
        try:
            wins = [await racer for racer in racers]
        finally:
            await scope.close()
        if wins.count(True) > 1 or await self._wins():
            await self._retrying.delete([self._key])
            raise SettingsError(
                f"{self._store.uri} ignores If-None-Match: two writers of one name both succeed, "
                "and Lakehead would lose data there. Use a store with conditional writes, "
                "or a newer release of this one"
            )

    async def _wins(self) -> bool:
        try:
            await self._retrying.create(self._key, [_BODY])
        except ObjectExists:
            return False
        except OutcomeUnknown as error:
            if ": 501" in str(error):
                raise SettingsError(f"{self._store.uri} has no conditional put: {error}") from None
            return False
        return True

    async def _read(self) -> None:
        read = self._retrying
        whole = await read.get(self._key)
        middle = await read.get_range(self._key, 9, 6)
        end, size = await read.get_suffix(self._key, 8)
        if (whole, middle, end, size) != (_BODY, _BODY[9:15], _BODY[-8:], len(_BODY)):
            raise SettingsError(f"{self._store.uri} returns other bytes than were requested")

    async def _list(self) -> None:
        listed = [meta.key for meta in await self._retrying.list(PREFIX)]
        if self._key not in listed:
            raise SettingsError(f"{self._store.uri} does not list an object that was just written")

    async def _put_checksums(self) -> None:
        """Put a body with the CRC of another one, and one with its own. If the server refuses the
        first alone, it would refuse a body that a broken connection cut off, too.
        """
        store = self._store
        settings, client = store.settings, store.multipart.client

        def is_refused() -> bool:
            from botocore.exceptions import BotoCoreError, ClientError

            try:
                client.put_object(
                    Bucket=settings.bucket,
                    Key=settings.full_key(self._key + _WRONG),
                    Body=_BODY,
                    ChecksumCRC64NVME=_WRONG_CRC,
                )
            except ClientError as error:
                return str(error.response["Error"].get("Code", "")) == "BadDigest"
            except BotoCoreError:
                return False  # not known: a body has its SHA-256
            return False

        if not await store.in_thread(is_refused):
            return
        store.use_crc(is_checked=True)
        try:
            await store.create(self._key + _RIGHT, [_BODY])
        except ObjectExists:
            pass  # an earlier try, whose response was lost
        except StorageError as error:
            store.use_crc(is_checked=False)
            _log.warning("crc_not_used", store=store.uri, trouble=str(error))

    async def _put_parts(self) -> None:
        """Begin an upload, write a part, put it together where a key is taken, give it up."""
        multipart = self._store.multipart
        key = self._key
        uploads: list[str] = []

        def upload() -> str:
            uploads.append(multipart.begin(key))
            etag = multipart.put_part(key, uploads[-1], 1, _BODY)
            try:
                multipart.complete(key, uploads[-1], [etag])
            except ObjectExists:
                return ""
            except (OutcomeUnknown, StoreRefused) as error:
                return str(error)
            return "ignores the condition"

        trouble = await self._retrying.repeat(key, lambda: self._store.in_thread(upload))
        if trouble:
            self._store.may_multipart = False
            _log.warning(
                "conditional_multipart_unsupported", store=self._store.uri, trouble=trouble
            )

        def give_up() -> None:
            for upload_id in uploads:
                multipart.abort(key, upload_id)

        await self._may(
            "s3:AbortMultipartUpload",
            lambda: self._retrying.repeat(key, lambda: self._store.in_thread(give_up)),
        )
