"""A restore in place beside a process that makes backups in the same place."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lakehead.storage.backup.manifest import RESTORING, is_restoring
from lakehead.storage.backup.pruning import Kept
from lakehead.storage.backup.restore import find_point, mark_restoring
from lakehead.storage.errors import CorruptObject, NotFound, RequestRefused
from lakehead.storage.object_store import FileStore, ObjectStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta
from tests.support.backups import back_up, bring_back
from tests.unit.test_backup import is_sound, replace_objects, rows, write


class Interrupted(FileStore):
    """A store at whose call number `at` something else is done first."""

    def __init__(self, root: Path, at: int, between: Callable[[], None]) -> None:
        super().__init__(root)
        self.left = at
        self._between = between

    async def _call(self) -> None:
        self.left -= 1
        if self.left == -1:
            await asyncio.to_thread(self._between)

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await self._call()
        await super().create(key, pieces)

    async def get(self, key: str) -> bytes:
        await self._call()
        return await super().get(key)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        await self._call()
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call()
        await super().delete(keys)


@pytest.mark.parametrize("interrupted", ["backup", "restore"])
def test_a_restore_in_place_and_pruning_do_not_meet(tmp_path: Path, interrupted: str) -> None:
    """A process that keeps one backup ends the one that becomes the cluster, with what it alone
    names: at whichever moment of one the other comes, the restore is refused, or objects stay.
    """
    source, first = tmp_path / "store", tmp_path / "first"
    write(tmp_path, uploads=2)
    back_up(source, first)
    before = rows(source)
    write(tmp_path, seed=1, uploads=2)
    replace_objects(source)
    after, restored = rows(source), 0
    for at in count():
        target = tmp_path / f"backup {at}"
        shutil.copytree(first, target)

        def back_up_once(place: Path | ObjectStore = target) -> None:
            with suppress(RequestRefused):
                back_up(source, place, kept=Kept(newest=1, hours=0))

        def restore_once(place: Path | ObjectStore = target) -> None:
            with suppress(RequestRefused, CorruptObject, NotFound):
                bring_back(place)

        if interrupted == "backup":
            store = Interrupted(target, at, restore_once)
            back_up_once(store)
        else:
            store = Interrupted(target, at, back_up_once)
            restore_once(store)
        if (target / "meta").exists():
            restored += 1
            assert rows(target) in (before, after), at
            assert is_sound(target), at
        if store.left >= 0:
            break
    assert restored > 5


class StaleListing(FileStore):
    """Lists what was there at first."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._seen: dict[str, Sequence[ObjectMeta]] = {}

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        if prefix not in self._seen:
            found = await super().list(prefix, start_after=start_after, limit=limit)
            self._seen[prefix] = found
        return self._seen[prefix]


async def test_neither_side_of_a_restore_in_place_relies_on_a_listing(tmp_path: Path) -> None:
    """A listing may be older than the mark of the restore, or than the deletion of its backup."""
    source, place = tmp_path / "store", tmp_path / "copy"
    await asyncio.to_thread(partial(write, tmp_path, uploads=2))
    await asyncio.to_thread(back_up, source, place)
    restoring, pruning = StaleListing(place), StaleListing(place)
    point = await find_point(restoring)
    assert point.manifest is not None
    assert not await is_restoring(pruning)
    await pruning.list(RESTORING)
    await restoring.create(RESTORING, [b""])
    assert await is_restoring(pruning)
    await pruning.delete([point.manifest.key])
    with pytest.raises(RequestRefused, match="was deleted just now"):
        await mark_restoring(restoring, point.manifest)
