"""What a verification has found, in words that name topic, partition, offsets and object."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Offsets [start_offset, end_offset) of a partition. Where no topic is known any more, `topic`
    is empty and only the stream is named.
    """

    stream_id: int
    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not as it should be: records cannot be read, or not be trusted."""

    place: Place
    object_key: str
    what: str
    to_do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidBatch:
    """A batch that is stored as its producer sent it, and that no reader can read, or not the times
    of all its records. It is no damage: there is nothing to put back.
    """

    place: Place
    object_key: str
    reason: str


def lost(place: Place, key: str) -> Damage:
    """An object that is not in the bucket."""
    return Damage(
        place=place,
        object_key=key,
        what="the object is missing",
        to_do="put it back from a copy or an older version of the bucket. Without one its records "
        f"are lost; to let consumers go on, delete up to {place.end_offset} "
        "(kafka-delete-records.sh)",
    )


def corrupt(place: Place, key: str, reason: str) -> Damage:
    """Bytes that are not what was written."""
    return Damage(
        place=place,
        object_key=key,
        what=reason,
        to_do="put the object back from a copy or an older version of the bucket. All other "
        f"offsets are unharmed; to let consumers go on, delete up to {place.end_offset} "
        "(kafka-delete-records.sh)",
    )


def unreadable(place: Place, key: str, reason: str) -> Damage:
    """An object of a newer release."""
    return Damage(place=place, object_key=key, what=reason, to_do="verify with a newer release")


def misplaced(place: Place, key: str, reason: str) -> Damage:
    """Metadata and objects that tell two stories."""
    return Damage(
        place=place,
        object_key=key,
        what=reason,
        to_do="the metadata log and the objects disagree: keep a copy of meta/, and see what "
        "`lakehead rebuild-catalog --dry-run` finds",
    )
