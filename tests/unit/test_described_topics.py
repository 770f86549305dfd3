"""Descriptions of topics are of one metadata image, and few enough."""

import pytest

from lakehead.broker.cluster import described_topics
from lakehead.broker.cluster.described_topics import DescribedTopics
from lakehead.storage.metadata.state import MetadataImage


def test_a_description_counts_for_the_image_that_it_was_made_of_alone() -> None:
    topics, older, newer = (
        DescribedTopics(),
        MetadataImage(next_entry=1),
        MetadataImage(next_entry=2),
    )
    topics.put(older, "t", ["old"])
    assert topics.get(older, "t") == ["old"]
    assert topics.get(newer, "t") is None
    assert topics.get(MetadataImage(next_entry=1), "t") is None
    topics.put(newer, "t", ["new"])
    topics.put(older, "t", ["late"])  # it was made while an entry came
    assert topics.get(older, "t") is None
    assert topics.get(newer, "t") == ["new"]


def test_descriptions_that_would_be_too_many_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_topics, "PARTITIONS_MAX", 3)
    topics, image = DescribedTopics(), MetadataImage(next_entry=1)
    topics.put(image, "a", [1, 2])
    topics.put(image, "b", [1, 2])
    topics.put(image, "c", [1])
    assert topics.get(image, "a") == [1, 2]
    assert topics.get(image, "b") is None
    assert topics.get(image, "c") == [1]
