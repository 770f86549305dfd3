"""Uploads: what gathered in the log cache becomes objects."""

from lakehead.broker.observability.measures.measure import counter

MEASURES = (
    counter(
        "uploads",
        "Snapshots uploaded and committed.",
        lambda n: n.engine.uploader.stats.upload_sets,
    ),
    counter(
        "upload_objects",
        "Objects written by uploads, committed or not yet.",
        lambda n: n.engine.uploader.stats.objects,
    ),
    counter("upload_bytes", "Bytes of those objects.", lambda n: n.engine.uploader.stats.bytes),
    counter(
        "upload_unknown_puts",
        "Uploads whose outcome had to be found out by putting again.",
        lambda n: n.engine.uploader.stats.unknown_puts,
    ),
)
