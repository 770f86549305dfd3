"""The bucket against the metadata: nothing leaks when the objects there are those referred to."""

from dataclasses import dataclass

from lakehead.storage.garbage.judgement import GARBAGE, Verdict, judge
from lakehead.storage.garbage.sweep import held_until_ms, listed
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakReport:
    """Keys, sorted. Without leaks and losses all but `referenced` are empty after quiet: when
    nothing is produced any more, uploads are committed and grace periods are over.
    """

    referenced: int
    """Objects that hold streams' data and are there."""
    missing: tuple[str, ...]
    """Referred to, and not in the bucket: data is lost."""
    leaked: tuple[str, ...]
    """Garbage that the next sweep takes."""
    delayed: tuple[str, ...]
    """Without a reference, kept for readers of an older view."""
    uploading: tuple[str, ...]
    """Not committed yet, by a node that is alive."""
    wal: tuple[str, ...]
    """Write-ahead log objects that recovery would read."""
    tombstones: int
    held: tuple[str, ...]
    """Without a reference since the catalog was rebuilt, and kept as long as its copy is."""
    strange: tuple[str, ...]
    """Names that Lakehead does not give."""

    @property
    def is_clean(self) -> bool:
        """Whether the bucket holds what is referred to, all of it and nothing else that could
        go.
        """
        return not (self.missing or self.leaked or self.delayed or self.strange)


async def check_leaks(store: ObjectStore, metadata: MetadataLog) -> LeakReport:
    """Compare bucket and metadata while the cluster runs. Raises StoreUnavailable."""
    before = await metadata.refresh()
    found = await listed(store)
    held_ms = await held_until_ms(store)
    after = await metadata.refresh()
    keys: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for item in found:
        verdict = judge(after, item.key, item.size)
        is_held = verdict in GARBAGE and item.modified_ms <= held_ms
        keys[Verdict.HELD if is_held else verdict].append(item.key)
    present = {item.key for item in found}
    # What was committed after the listing began need not be in it.
    missing = [
        key
        for key, known in after.objects.items()
        if known.stream_ids and key not in present and key in before.objects
    ]
    leaked = [key for verdict in GARBAGE for key in keys[verdict]]
    return LeakReport(
        referenced=len(keys[Verdict.REFERENCED]),
        missing=tuple(sorted(missing)),
        leaked=tuple(sorted(leaked)),
        delayed=tuple(sorted(keys[Verdict.UNREFERENCED])),
        uploading=tuple(sorted(keys[Verdict.UPLOADING])),
        wal=tuple(sorted(keys[Verdict.WAL])),
        tombstones=len(keys[Verdict.TOMBSTONE]),
        held=tuple(sorted(keys[Verdict.HELD])),
        strange=tuple(sorted(keys[Verdict.STRANGE])),
    )
