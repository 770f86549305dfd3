"""A cluster's metadata, looked at again and again: what all triggers of a connection share.

One look is one small request to the store while there is no news; no broker is asked.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowFailException

    from lakehead.storage.errors import LakeheadError
    from lakehead.storage.metadata.log_reader import LogReader
    from lakehead.storage.metadata.state import ClusterState
    from lakehead.storage.object_store import ObjectStore

_T = TypeVar("_T")
_log = structlog.get_logger("connectors.airflow")

TROUBLE_S = 30.0
"""The longest pause between looks at a store that cannot be reached."""


class ClusterLook(NamedTuple):
    """The result of a look: the newest state and the time (milliseconds since 1970), or the error
    for which there is none until the operator acts.
    """

    state: "ClusterState | None"
    at_ms: int
    error: "LakeheadError | AirflowFailException | None" = None


async def cluster_looks(lakehead_conn_id: str, pause_s: float) -> AsyncGenerator[ClusterLook, None]:
    """Yield a look at once, and then one after each pause, for ever. A store that cannot be reached
    is asked again, ever more slowly, and no look is made of that.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from lakehead.storage.clock import SystemClock
    from lakehead.storage.errors import LakeheadError, StoreUnavailable

    clock, trouble_s = SystemClock(), pause_s
    watched: _Watched | None = None
    try:
        while True:
            try:
                if watched is None:
                    watched = await _Watched.open(lakehead_conn_id)
                state = await watched.newest()
            except StoreUnavailable as error:
                trouble_s = min(trouble_s * 2, max(TROUBLE_S, pause_s))
                _log.warning(
                    "store_unavailable",
                    connection=lakehead_conn_id,
                    error=str(error),
                    again_in_s=trouble_s,
                )
                await asyncio.sleep(trouble_s)
                continue
            except (LakeheadError, AirflowFailException) as error:
                yield ClusterLook(None, clock.now_ms(), error)
                await asyncio.sleep(max(TROUBLE_S, pause_s))
                continue
            trouble_s = pause_s
            yield ClusterLook(state, clock.now_ms())
            await asyncio.sleep(pause_s)
    finally:
        if watched is not None:
            await watched.close()


class _Watched:
    """A cluster's store and what is known of its log. Reads only."""

    def __init__(self, store: "ObjectStore", reader: "LogReader") -> None:
        self._store = store
        self._reader = reader

    @classmethod
    async def open(cls, lakehead_conn_id: str) -> "_Watched":
        """Raises SettingsError when there is no cluster, StoreUnavailable, AirflowFailException."""
        from lakehead.connectors.airflow.hooks import LakeheadHook
        from lakehead.storage.errors import SettingsError
        from lakehead.storage.metadata.log_reader import LogReader
        from lakehead.storage.object_store import open_retrying_store

        hook = LakeheadHook(lakehead_conn_id)
        # Asking Airflow for a connection blocks, and must not do so on the triggerer's loop.
        path, _ = await asyncio.to_thread(lambda: (hook.path, hook.storage_settings))
        store = open_retrying_store(path, rng=random.SystemRandom())
        reader = LogReader(store)
        try:
            # The environment is the process's: one connection's at a time. A store's client keeps
            # what it found there when it was first used.
            async with _environments:
                with hook.environment():
                    await reader.load()
            await reader.catch_up()
            if not reader.state.cluster_id:
                raise SettingsError(
                    f"connection {lakehead_conn_id}: there is no cluster in {store.uri}"
                )
        except BaseException:
            await store.close()
            raise
        return cls(store, reader)

    async def newest(self) -> "ClusterState":
        await self._reader.catch_up()
        return self._reader.state

    async def close(self) -> None:
        await self._store.close()


async def in_environment(lakehead_conn_id: str, work: Callable[[str], _T]) -> _T:
    """Return what `work` returns of the cluster's path, in a thread, with the connection's storage
    settings in the environment. Raises what it raises, and AirflowFailException.
    """
    from lakehead.connectors.airflow.hooks import LakeheadHook

    hook = LakeheadHook(lakehead_conn_id)
    path, _ = await asyncio.to_thread(lambda: (hook.path, hook.storage_settings))
    async with _environments:
        with hook.environment():
            return await asyncio.to_thread(work, path)


_environments = asyncio.Lock()
