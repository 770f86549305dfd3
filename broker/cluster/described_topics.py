"""The partitions of topics as responses describe them, kept while the metadata stay the same.

Producers of a large job connect at once, and each of them requests the same partitions a few times.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from lakehead.storage.metadata.state import MetadataImage

PARTITIONS_MAX = 100_000
"""Partitions that are kept, some 200 bytes each."""


class DescribedTopics:
    """Descriptions that are a function of a metadata image and a key. Those of the newest image are
    kept.
    """

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._known: dict[Hashable, Sequence[Any]] = {}
        self._count = 0

    def get(self, image: MetadataImage, key: Hashable) -> Sequence[Any] | None:
        """Return the partitions that were described by this image; None if none were."""
        return self._known.get(key) if image is self._image else None

    def put(self, image: MetadataImage, key: Hashable, partitions: Sequence[Any]) -> None:
        """Keep a description, unless a newer image has been seen or too many are kept."""
        if self._image is None or image.next_entry > self._image.next_entry:
            self._image, self._known, self._count = image, {}, 0
        if image is self._image and self._count + len(partitions) <= PARTITIONS_MAX:
            self._count += len(partitions)
            self._known[key] = partitions
