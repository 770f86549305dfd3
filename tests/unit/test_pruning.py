"""Pruned backups take with them what no other backup names, and nothing else."""

import random
import tracemalloc
from collections.abc import Iterable

from lakehead.storage.backup.manifest import Manifest, list_manifests, state_key
from lakehead.storage.backup.pruning import Kept, Pruner
from lakehead.storage.format.object_names import DataName
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.beginning import checkpoint_pieces
from lakehead.storage.metadata.state import MetadataImage, ObjectState
from lakehead.storage.metadata.table import Table
from lakehead.storage.object_store import MemoryStore

KEPT = Kept(newest=3, hours=0)


def object_of(cluster_id: str) -> bytes:
    """Return a stream object, which says whose it is."""
    writer = ObjectWriter(
        kind="so", cluster_id=cluster_id, node_id=0, node_epoch=0, writer_id="w", created_ms=0
    )
    writer.begin_stream(StreamInfo(stream_id=0, state=b""))
    return b"".join(map(bytes, writer.finish().pieces))


def state_of(keys: Iterable[str]) -> MetadataImage:
    """Return metadata that name these objects."""
    objects = [
        ObjectState(
            key=key,
            kind="so",
            size=1,
            node_id=0,
            node_epoch=0,
            created_ms=0,
            stream_ids=frozenset({0}),
        )
        for key in keys
    ]
    table = Table[str, ObjectState]().update((one.key, one) for one in objects)
    return MetadataImage(cluster_id="c", next_entry=1, objects=table)


async def put_backup(store: MemoryStore, number: int, state: MetadataImage) -> Manifest:
    """Put a backup, with its objects, as a process that makes one does."""
    key, body = state_key(number, number), object_of("c")
    store.objects |= dict.fromkeys(state.objects, body)
    store.objects[key] = b"".join(map(bytes, await checkpoint_pieces(state)))
    made = Manifest(
        number=number,
        cluster_id="c",
        position_ms=0,
        next_entry=1,
        state=key,
        objects=len(state.objects),
        size=1,
    )
    store.objects[made.key] = made.encode()
    return made


async def opened(store: MemoryStore) -> Pruner:
    pruner = Pruner(store, KEPT)
    held = [key for key in store.objects if key.startswith("data/")]
    await pruner.open(await list_manifests(store), held)
    return pruner


async def test_what_is_left_is_what_the_kept_backups_name_whatever_they_name_in_common() -> None:
    """Objects come and go, and some come back, as where a cluster is restored from a backup. The
    process that makes the backups is another one now and then.
    """
    for seed in range(8):
        rng, store = random.Random(seed), MemoryStore()
        keys = [DataName(0, 0, number).key for number in range(30)]
        named: dict[int, set[str]] = {}
        pruner = await opened(store)
        state = state_of(())
        for number in range(12):
            if rng.random() < 0.8:
                state = state_of(rng.sample(keys, rng.randint(0, 30)))
            if rng.random() < 0.3:
                pruner = await opened(store)
            named[number] = set(state.objects)
            removed = await pruner.prune(await put_backup(store, number, state), state)
            left = await list_manifests(store)
            assert left == list(range(max(0, number - 2), number + 1))
            wanted = set().union(*(named[one] for one in left))
            assert {key for key in store.objects if key.startswith("data/")} == wanted, seed
            assert not removed & wanted


async def test_a_backup_that_another_process_prunes_meanwhile_is_passed_over() -> None:
    store = MemoryStore()
    first, second = [await put_backup(store, number, state_of(())) for number in range(2)]
    numbers = await list_manifests(store)
    await store.delete([first.key])
    assert await Pruner(store, KEPT).open(numbers, ()) == second


async def test_backups_of_the_same_objects_have_their_names_in_memory_once() -> None:
    """Each set of 2,000 names takes 130 KB, and their text as much."""
    store, kept = MemoryStore(), Kept(newest=12, hours=0)
    keys = [DataName(0, 0, number).key for number in range(2_100)]
    for number in range(12):
        await put_backup(store, number, state_of(keys[number : number + 2_000]))
    pruner = Pruner(store, kept)
    await pruner.open(await list_manifests(store), ())
    state = state_of(keys[50:2_050])
    newest = await put_backup(store, 12, state)
    tracemalloc.start()
    try:
        assert await pruner.prune(newest, state) == {keys[0]}
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 600 * 1024
