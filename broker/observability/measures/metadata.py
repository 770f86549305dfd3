"""The metadata log, as this node knows it, and what became of objects that nothing refers to."""

from lakehead.broker.observability.measures.measure import counter, gauge

MEASURES = (
    gauge(
        "metadata_entries",
        "Entries of the metadata log so far: the next one's number.",
        lambda n: n.state.next_entry,
    ),
    gauge("metadata_streams", "Streams of the cluster.", lambda n: len(n.state.streams)),
    gauge("metadata_objects", "Objects the metadata names.", lambda n: len(n.state.objects)),
    gauge(
        "metadata_unreferenced_objects",
        "Objects that nothing refers to any more and that wait to be deleted.",
        lambda n: len(n.state.unreferenced),
    ),
    counter(
        "metadata_commits",
        "Changes that this node committed.",
        lambda n: n.engine.metadata.stats.commits,
    ),
    counter(
        "metadata_entries_put",
        "Entries that this node created; commits by it say how well they are grouped.",
        lambda n: n.engine.metadata.stats.entries_put,
    ),
    counter(
        "metadata_entries_applied",
        "Entries read and applied, this node's own included.",
        lambda n: n.engine.metadata.stats.entries_applied,
    ),
    counter(
        "metadata_entries_refused",
        "Entries that took a number and changed nothing, by the rules.",
        lambda n: n.engine.metadata.stats.entries_refused,
    ),
    counter(
        "metadata_races_lost",
        "Numbers that another node had first.",
        lambda n: n.engine.metadata.stats.races_lost,
    ),
    counter(
        "metadata_unknown_outcomes",
        "Entries of which only reading could tell whether they were there.",
        lambda n: n.engine.metadata.stats.unknown_outcomes,
    ),
    counter(
        "metadata_loads",
        "Starts from a checkpoint: at opening, and when this node had fallen far behind.",
        lambda n: n.engine.metadata.stats.loads,
    ),
    counter(
        "metadata_checkpoints",
        "Checkpoints that this node wrote.",
        lambda n: n.engine.metadata.stats.checkpoints_written,
    ),
    gauge(
        "metadata_checkpoint_bytes",
        "Size of the last checkpoint written here.",
        lambda n: n.engine.metadata.stats.checkpoint_bytes,
    ),
    counter(
        "metadata_corrupt_checkpoints",
        "Checkpoints that failed their checksums; an older one was taken.",
        lambda n: n.engine.metadata.stats.corrupt_checkpoints,
    ),
    counter(
        "metadata_deleted",
        "Old entries and checkpoints deleted.",
        lambda n: n.engine.metadata.stats.objects_deleted,
    ),
    gauge(
        "garbage_waiting",
        "Of those, this node's to delete, within their grace period.",
        lambda n: n.engine.garbage.stats.waiting,
    ),
    counter(
        "garbage_objects", "Objects deleted.", lambda n: n.engine.garbage.stats.deleted_objects
    ),
    counter("garbage_bytes", "Bytes deleted.", lambda n: n.engine.garbage.stats.deleted_bytes),
    counter(
        "garbage_sweeps",
        "Times the store was listed for what crashes left.",
        lambda n: n.engine.garbage.stats.sweeps,
    ),
    counter(
        "garbage_failures",
        "Times that deleting failed and was put off.",
        lambda n: n.engine.garbage.stats.failures,
    ),
)
