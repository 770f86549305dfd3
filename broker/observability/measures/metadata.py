"""The metadata log, as this node knows it, and what became of objects that nothing refers to."""

from broker.observability.measures.measure import counter, gauge

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
