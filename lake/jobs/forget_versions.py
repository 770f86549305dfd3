"""Old versions of objects and files, which a bucket with versioning keeps of deleted ones: those
with records of a certificate's keys are found by their content, and can be deleted for good.

Other versions are left alone. A note beside the certificate names each version before it is deleted
(`lakehead.storage.certificates`).
"""

import asyncio
import getpass
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lakehead.lake.jobs.forget_files import IsForgotten, rows_of
from lakehead.storage.certificate_check import check_version
from lakehead.storage.certificates import (
    Certificates,
    DeletedVersion,
    DeletedVersions,
    ForgetRequest,
)
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.forgetting import Keys
from lakehead.storage.encryption.settings import of_environment, split_address
from lakehead.storage.errors import CorruptObject, ObjectNotFound, StoreRefused, UnsupportedFormat
from lakehead.storage.garbage import is_own_name
from lakehead.storage.jobs.cluster import in_cluster
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import MemoryStore, ObjectStore, open_store
from lakehead.storage.object_store.encrypted import encrypted
from lakehead.storage.object_store.s3.multipart import OldVersion
from lakehead.storage.object_store.s3.store import S3Store
from lakehead.storage.wal.object.names import is_seal_size

T = TypeVar("T")

_OF_CLUSTER = ("data/", "wal/")


@dataclass(slots=True)
class VersionsChecked:
    """The versions with records of the keys; `unknown` says in words what could not be read."""

    held: list[DeletedVersion] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsLook:
    """A look for records of a request's keys in old versions: below the cluster's `path`, and below
    the `roots` of its tables.
    """

    path: str
    roots: tuple[str, ...]
    request: ForgetRequest
    keys: Keys
    is_forgotten: IsForgotten

    def run(self) -> VersionsChecked:
        """Read every old version. Raises StoreUnavailable."""
        found = VersionsChecked()
        places = [(self.path, one) for one in _OF_CLUSTER] + [(root, "") for root in self.roots]
        for uri, prefix in places:
            try:
                _in_bucket(uri, partial(self._look, found, uri, prefix))
            except StoreRefused as error:
                if " 501 " in f" {error} " or "NotImplemented" in str(error):
                    continue  # a server without versions
                found.unknown.append(f"it is not known if the bucket keeps old versions: {error}")
        return found

    async def _look(self, found: VersionsChecked, uri: str, prefix: str, store: S3Store) -> None:
        for version in await store.old_versions(prefix):
            if not self._may_hold(version, is_table=not prefix):
                continue
            try:
                body = await store.get_version(version)
                records = await self._records(store, uri, version, body, is_table=not prefix)
            except ObjectNotFound:
                continue  # deleted meanwhile
            except (CorruptObject, UnsupportedFormat) as error:
                found.unknown.append(
                    f"{uri}: version {version.version_id} of {version.key} cannot be read: {error}"
                )
                continue
            if records:
                found.held.append(
                    DeletedVersion(
                        store=uri,
                        key=version.key,
                        version_id=version.version_id,
                        records=records,
                    )
                )

    @staticmethod
    def _may_hold(version: OldVersion, *, is_table: bool) -> bool:
        if not is_table:
            return is_own_name(version.key) and not is_seal_size(version.size)
        from lakehead.lake.tables.table_root import is_data_file

        return version.key.endswith(".parquet") and is_data_file(version.key)

    async def _records(
        self, store: S3Store, uri: str, version: OldVersion, body: bytes, *, is_table: bool
    ) -> int:
        alone = MemoryStore({version.key: body})
        alone.uri = store.uri  # data keys are bound to the place
        plain = encrypted(
            alone,
            split_address(uri)[1] or of_environment(),
            clock=SystemClock(),
            rng=random.SystemRandom(),
        )
        if not is_table:
            checked = await check_version(plain, version.key, self.request, self.keys)
            return sum(one.records for one in checked.held)
        import pyarrow as pa

        try:
            rows, _ = rows_of(await plain.get(version.key), self.request, self.is_forgotten)
        except pa.ArrowException as error:
            raise CorruptObject(version.key, 0, str(error)) from None
        return rows


def delete_versions(path: str, number: int, held: Sequence[DeletedVersion]) -> None:
    """Note versions beside certificate `number`, and delete them for good. Raises StoreRefused
    without the permission `s3:DeleteObjectVersion`, StoreUnavailable, OutcomeUnknown.
    """

    async def note(store: ObjectStore, log: MetadataLog) -> None:
        made = DeletedVersions(
            number=number,
            deleted_by=f"{getpass.getuser()}@{socket.gethostname()}",
            deleted_ms=SystemClock().now_ms(),
            versions=tuple(held),
        )
        certificates = Certificates(store, random.SystemRandom())
        await certificates.note_versions(made.signed(log.state.node_secret))

    in_cluster(path, "forget", note)
    for uri in dict.fromkeys(one.store for one in held):
        mine = [one for one in held if one.store == uri]
        _in_bucket(uri, partial(_deleted, mine))


async def _deleted(held: Iterable[DeletedVersion], store: S3Store) -> None:
    for one in held:
        await store.delete_version(OldVersion(one.key, one.version_id, 0))


def _in_bucket(uri: str, work: Callable[[S3Store], Awaitable[T]]) -> T | None:
    """Run `work` on the bucket at `uri`; None for another kind of store, which has no versions."""
    store = open_store(split_address(uri)[0])
    if not isinstance(store, S3Store):
        return None

    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())
