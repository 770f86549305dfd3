"""Acknowledgements of share groups, in ShareFetch and ShareAcknowledge requests."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_TOPIC
from lakehead.broker.share.led_share_partition import Outcome
from lakehead.broker.share.record_state import AcknowledgeType
from lakehead.broker.share.share_partition import Acknowledgement
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_session import Place, ShareSessionKey
from lakehead.storage.errors import LakeheadError

RECORDS_MAX = 200_000
"""Verdicts of a request: on all records that may be in flight in twenty partitions."""
_MEMBER_ID_MAX = 36


class Acknowledged(NamedTuple):
    """The outcome of a partition's acknowledgements."""

    code: ErrorCode
    message: str | None


_SUCCESS = Acknowledged(ErrorCode.none, None)


def group_of(request: Any) -> str:
    """Return the group of a request. Raises INVALID_REQUEST."""
    if request.group_id is None:
        raise KafkaError(ErrorCode.invalid_request, "Invalid group id in the request.")
    return str(request.group_id)


def member_of(request: Any) -> ShareSessionKey:
    """Return the member of a request. Raises INVALID_REQUEST."""
    member_id = request.member_id
    if not member_id or len(member_id) > _MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.invalid_request, "Invalid member id in the request.")
    return ShareSessionKey(group_of(request), member_id)


def places_of(topics: Iterable[Any]) -> Iterator[tuple[Place, Any]]:
    """Yield the partitions that a request names."""
    for topic in topics:
        topic_id = bytes(16) if topic.topic_id is None else topic.topic_id.bytes
        for partition in topic.partitions:
            yield (topic_id, partition.partition_index), partition


def has_acknowledgements(topics: Iterable[Any]) -> bool:
    """Return true if a request acknowledges records."""
    return any(partition.acknowledgement_batches for _, partition in places_of(topics))


async def acknowledge(
    context: RequestContext, member: ShareSessionKey, request: Any
) -> dict[Place, Acknowledged]:
    """Acknowledge what a request says, and return the outcome of each partition that it
    acknowledges records of, once all is durable.
    """
    is_renewing = getattr(request, "is_renew_ack", False)
    begun: dict[Place, Outcome | KafkaError] = {}
    for place, partition in places_of(request.topics):
        if partition.acknowledgement_batches:
            try:
                batches = checked(partition.acknowledgement_batches, is_renewing=is_renewing)
                begun[place] = _begin(context, member, place, batches)
            except KafkaError as error:
                begun[place] = error
    return {place: await _outcome(one) for place, one in begun.items()}


def refused_without_batches(
    context: RequestContext, topics: Iterable[Any]
) -> dict[Place, Acknowledged]:
    """Return the errors of partitions that a request names, and acknowledges no records of."""
    refused = {}
    for place, partition in places_of(topics):
        if not partition.acknowledgement_batches:
            try:
                _check_served(context, place)
            except KafkaError as error:
                refused[place] = Acknowledged(error.code, error.message)
    return refused


def _check_served(context: RequestContext, place: Place) -> None:
    """Raise KafkaError for a partition that the client may not read here."""
    topic = context.services.topics.by_id.get(place[0])
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_id)
    if not context.may(READ_TOPIC, topic.name):
        raise KafkaError(READ_TOPIC.error)
    topic.served(place[1])


def _begin(
    context: RequestContext,
    member: ShareSessionKey,
    place: Place,
    batches: Sequence[Acknowledgement],
) -> Outcome:
    services = context.services
    _check_served(context, place)
    led = services.share_partitions.find(SharePartitionKey(member.group_id, *place))
    if led is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return led.acknowledge(member.member_id, batches)


async def _outcome(begun: Outcome | KafkaError) -> Acknowledged:
    if isinstance(begun, KafkaError):
        return Acknowledged(begun.code, begun.message)
    try:
        await asyncio.shield(begun)
    except LakeheadError as error:
        return Acknowledged(error_code(error), error_message(error))
    return _SUCCESS


def checked(batches: Iterable[Any], *, is_renewing: bool) -> list[Acknowledgement]:
    """Return the batches of a partition. Raises INVALID_REQUEST for batches that are out of order,
    overlap, or have types that are unknown or do not fit.
    """
    most = AcknowledgeType.RENEW if is_renewing else AcknowledgeType.REJECT
    found = []
    end = -1
    for one in batches:
        types = one.acknowledge_types
        if not end <= one.first_offset <= one.last_offset:
            raise KafkaError(ErrorCode.invalid_request, "The batches are not in order.")
        if len(types) not in {1, one.last_offset - one.first_offset + 1}:
            raise KafkaError(ErrorCode.invalid_request, "The types do not fit the offsets.")
        if not all(0 <= kind <= most for kind in types):
            raise KafkaError(ErrorCode.invalid_request, "Invalid acknowledge type.")
        end = one.last_offset
        found.append(Acknowledgement(one.first_offset, one.last_offset, types))
    return found
