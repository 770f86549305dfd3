"""Entries of the metadata log as a viewer may see them.

DESCRIBE of the cluster shows nodes, users and access rules, as to Kafka's clients. It shows no name
and no config of a topic or group that the viewer may not describe: such a record keeps its type
alone.
"""

import re
from collections.abc import Mapping
from typing import Any

from lakehead.broker.console.viewer import Viewer
from lakehead.storage.metadata.state import MetadataImage

HIDDEN = "the access rules do not let you see this record"
_WORD = re.compile(r"[A-Za-z0-9._-]+")
_EVERY = "*"
"""Rules for all names have this one, so it stands for those that are gone."""


def visible_entry(entry: Any, viewer: Viewer, state: MetadataImage) -> Any:
    """Return an entry without what its viewer may not see. Belongs to the event loop."""
    if not isinstance(entry, dict) or not viewer.node.services.authorizer.is_enabled:
        return entry
    records = entry.get("records", ())
    names = {
        one["topic_id"]: one["name"]
        for one in records
        if isinstance(one, dict) and one.get("type") == "CreateTopic"
    }
    return entry | {
        "records": [
            one
            if not isinstance(one, dict) or _is_seen(one, viewer, state, names)
            else {"type": one.get("type"), "hidden": HIDDEN}
            for one in records
        ]
    }


def _is_seen(
    record: Mapping[str, Any], viewer: Viewer, state: MetadataImage, created: Mapping[str, str]
) -> bool:
    kind = record.get("type")
    if kind == "GroupConfig":
        return viewer.sees_group(str(record.get("group", "")))
    topic_id = record.get("topic_id")
    if topic_id is None:
        return True
    known = state.topic_by_id(topic_id)
    name = created.get(topic_id) or (_EVERY if known is None else known.name)
    if not viewer.sees_topic(name):
        return False
    has_configs = kind == "TopicConfig" or record.get("configs")
    return not has_configs or viewer.sees_configs(name)


def names_hidden_topic(text: str, viewer: Viewer, state: MetadataImage) -> bool:
    """Return true if a text names a topic, or a partition of one, that the viewer may not see.
    Belongs to the event loop.
    """
    for word in _WORD.findall(text):
        for name in {word, word.strip(".-_"), word.rpartition("-")[0]}:
            if name in state.topics and not viewer.sees_topic(name):
                return True
    return False
