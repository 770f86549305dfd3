"""The topic that a table belongs to: by its id, which no other topic ever has.

A topic that is deleted and created again has the same name and counts its offsets from 0, so rows
of the two cannot be distinguished, nor put in one order. The table records its topic's id as a
`txn` action of one name for all tables (`lakehead:topic`): of the id that is a number made from it,
as versions of applications are numbers. The commit that creates a table sets it, and the one that
puts a rebuilt table in place; every commit of progress sets it again, so none succeeds concurrently
with a change of the topic.

A table that was made before this was recorded has its progress by topic id. Those ids are read
from its log, once: the next commit of progress records the topic.
"""

import hashlib
import re

from lakehead.lake.tables.delta_table import NOTHING, Table, applications
from lakehead.storage.errors import SettingsError

OWNER = "lakehead:topic"
"""The name under which a table records what topic it belongs to."""

_PROGRESS = re.compile(r"lakehead:(?!first:|replay:)([^:]+):\d+")


class OtherTopic(SettingsError):
    """The table holds records of a topic that was deleted: not of the one with its name today."""


def owner_txn(topic_id: str) -> dict[str, int]:
    """Return what a commit sets for a table to belong to a topic."""
    digest = hashlib.sha256(topic_id.encode()).digest()
    return {OWNER: int.from_bytes(digest[:8]) >> 1}


def is_of_topic(table: Table, topic_id: str) -> bool:
    """Return whether a table belongs to the topic with this id, and holds records of no other one.

    Raises what reading the table's log raises.
    """
    noted = table.txn_version(OWNER)
    if noted != NOTHING:
        return noted == owner_txn(topic_id)[OWNER]
    progress = (_PROGRESS.fullmatch(app) for app in applications(table.uri))
    ids = {found.group(1) for found in progress if found is not None}
    return ids == {topic_id} or (not ids and not table.handle.file_uris())


def check_topic(table: Table, topic: str, topic_id: str) -> None:
    """Raise OtherTopic for a table that holds records of a topic of the same name that was deleted.

    Raises also what reading the table's log raises.
    """
    if not is_of_topic(table, topic_id):
        raise OtherTopic(
            f"{table.uri} holds records of an earlier topic {topic}: that topic was deleted, and "
            f"the one of this name today has another id ({topic_id}). To rebuild the "
            f"table from today's records: lakehead rebuild-table {topic} --without-history; to "
            "keep its records: name another place (lakehead.table.path, or --table)"
        )
