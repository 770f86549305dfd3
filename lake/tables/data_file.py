"""Data files of a Delta table: Parquet under the table's root, unseen until a commit names them."""

import asyncio
import contextlib
import random
import secrets
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.tables.file_statistics import file_statistics
from storage.errors import ObjectExists, OutcomeUnknown
from storage.object_store import open_retrying_store

_ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that was written, with what a commit must say about it."""

    path: str  # below the table's root
    size_bytes: int
    record_count: int
    statistics: str


def write_data_file(root: str, rows: Any) -> DataFile:
    """Write an Arrow table as one Parquet file (zstd) below `root`, durably.

    The object store creates it whole or not at all, under a name that is never used again; a file
    that no commit names is removed by VACUUM.

    Raises the errors of `ObjectStore.create`.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", store_schema=False)
    body = sink.getvalue()
    path = f"part-{secrets.token_hex(16)}.zstd.parquet"
    _run(root, path, body)
    return DataFile(
        path=path,
        size_bytes=body.size,
        record_count=rows.num_rows,
        statistics=file_statistics(rows),
    )


def delete_data_files(root: str, paths: list[str]) -> None:
    """Remove files that were never offered to a commit."""

    async def delete() -> None:
        store = open_retrying_store(root, rng=random.Random())
        try:
            await store.delete(paths)
        finally:
            await store.close()

    asyncio.run(delete())


def read_data_file(root: str, path: str) -> Any:
    """Return the rows of a file that was written by `write_data_file`."""

    async def get() -> bytes:
        store = open_retrying_store(root, rng=random.Random())
        try:
            return await store.get(path)
        finally:
            await store.close()

    return pq.read_table(pa.BufferReader(asyncio.run(get())))


def _run(root: str, path: str, body: Any) -> None:
    async def create() -> None:
        store = open_retrying_store(root, rng=random.Random())
        try:
            # The name is ours alone: if it exists, an earlier try had got through.
            with contextlib.suppress(ObjectExists):
                for _ in range(_ATTEMPTS - 1):
                    with contextlib.suppress(OutcomeUnknown):
                        return await store.create(path, [memoryview(body)])
                await store.create(path, [memoryview(body)])
        finally:
            await store.close()

    asyncio.run(create())
