"""Keys and values of a topic's records as a page shows them: decoded by the topic's declaration
(`lakehead.table.value.format`), or by a schema registry: the declared one, else `console.registry`.
"""

import base64
from collections.abc import Sequence

from lakehead.broker.console.lake_process import LakeProcess, LakeProcessError
from lakehead.broker.console.records import Reading, undecoded
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import TopicState

_DECODE_S = 6.0
_BINARY_FORMATS = ("avro", "protobuf")


class TopicValues:
    """Decodes for one page. `problem` is the reason that something is shown as it is; after it the
    lake's process gets no request of the page any more.
    """

    def __init__(
        self, node: ObservedNode, lake: LakeProcess, topic: TopicState, viewer: Viewer
    ) -> None:
        self.problem = ""
        self._settings = node.services.settings
        self._lake = lake
        self._topic = topic
        self._viewer = viewer
        self._registry = self._settings.console_registry
        self._has_declared_schema = self._has_declared_registry = False
        try:
            declared = TableDeclaration.of(topic)
        except SettingsError as error:  # set by another release
            self.problem = f"the declaration of the topic: {error}"
            return
        self._has_declared_registry = bool(declared.schema_registry_url)
        self._has_declared_schema = (
            not self._has_declared_registry and declared.value_format in _BINARY_FORMATS
        )

    def decode_keys(self, keys: Sequence[bytes | None]) -> Sequence[Reading]:
        """Return a reading of each key: by a registry alone, since topics declare no keys."""
        if not any(map(_is_framed, keys)) or not (self._registry or self._has_declared_registry):
            return undecoded(keys)
        return self._decode(keys, are_keys=True)

    def decode_values(self, values: Sequence[bytes | None]) -> Sequence[Reading]:
        """Return a reading of each value."""
        is_declared = self._has_declared_schema or self._has_declared_registry
        if is_declared or (self._registry and any(map(_is_framed, values))):
            return self._decode(values, are_keys=False)
        return undecoded(values)

    def _decode(self, data: Sequence[bytes | None], *, are_keys: bool) -> Sequence[Reading]:
        if self.problem:
            return undecoded(data)
        topic = self._topic
        try:
            found = self._lake.request(
                "decode",
                timeout_s=_DECODE_S,
                topic=topic.name,
                topic_id=topic.topic_id,
                configs=dict(topic.configs),
                values=[None if one is None else base64.b64encode(one).decode() for one in data],
                are_keys=are_keys,
                registry=self._registry,
                roles=self._settings.registry_roles,
                viewer=self._viewer.principal.name,
            )
        except LakeProcessError as error:
            self.problem = f"values are not decoded: {error}"
            return undecoded(data)
        return [Reading(**one) for one in found]


def _is_framed(data: bytes | None) -> bool:
    """Return true for bytes that may begin with a schema id (Confluent's wire format)."""
    return data is not None and len(data) > 4 and data[0] == 0
