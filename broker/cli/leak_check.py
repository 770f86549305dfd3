"""`lakehead leak-check`: compare the bucket with the metadata.

A running node does the same by itself. The command is for a cluster that is down, or a look before.
"""

from lakehead.broker.cli.cluster import DEFAULT_PATH, PathOption, store_uri
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.progress import waiting
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.sweep import find_leaks


def leak_check(path: PathOption = DEFAULT_PATH, as_json: JsonOption = False) -> None:
    """Compare the bucket with the metadata.

    Status 1 if something is missing or has leaked.
    """
    with waiting("listing the bucket"):
        report = find_leaks(store_uri(path))
    show_fields(
        {
            "referenced objects": report.referenced,
            "missing": len(report.missing),
            "leaked": len(report.leaked),
            "waiting for their grace": len(report.delayed),
            "being uploaded": len(report.uploading),
            "write-ahead log": len(report.wal),
            "tombstones": report.tombstones,
            "held since a rebuild of the catalog": len(report.held),
            "strange names": len(report.strange),
        },
        as_json,
    )
    if report.missing:
        raise SettingsError(f"{len(report.missing)} objects are missing: {report.missing[0]}")
    if report.leaked:
        raise SettingsError(
            f"{len(report.leaked)} objects have leaked: {report.leaked[0]}; see: lakehead sweep"
        )
