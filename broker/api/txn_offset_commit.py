"""TxnOffsetCommit (key 28), versions 0 to 5: offsets that count when a transaction is committed.

2 leader epochs (KIP-320) · 3 compact; the consumer's member id and generation (KIP-447) · 4
TRANSACTION_ABORTABLE · 5 adds the group's partition to the transaction (KIP-890).

The transaction's coordinator first verifies that the group's partition is in the transaction. Its
response holds only while no transaction of the producer began or ended there since. As in Kafka
this error, and that of an unknown member, precede an error of metadata that is too long.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.messages import TransactionalMember
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.transaction.messages import Producer
from lakehead.broker.partition.partition import OFFSETS_TOPIC
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP, READ_TOPIC, WRITE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError
from lakehead.storage.format.record_batch import NO_SEQUENCE

API = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 5),
    is_at_once=True,
    access=(WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_TOPIC),
)

_LOADING_VERSION = 2
_ABORTABLE_VERSION = 4
_ADDING_VERSION = 5


async def handle(request: Any, context: RequestContext) -> Any:
    """Check every partition, store the valid ones in one batch, return the response for each."""
    codes: dict[tuple[str, int], ErrorCode] = {}
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    turns = Turns()
    denial = None
    if not context.may(WRITE_TRANSACTIONAL_ID, request.transactional_id):
        denial = WRITE_TRANSACTIONAL_ID.error
    elif not context.may(READ_GROUP, request.group_id):
        denial = READ_GROUP.error
    for topic in request.topics:
        await turns.step(1 + len(topic.partitions))
        topic_denial = denial
        if denial is None and not context.may(READ_TOPIC, topic.name):
            topic_denial = READ_TOPIC.error
        if topic_denial is not None:
            for partition in topic.partitions:
                codes[topic.name, partition.partition_index] = topic_denial
            continue
        known = context.services.topics.find(topic.name)
        for partition in topic.partitions:
            where = topic.name, partition.partition_index
            codes[where] = ErrorCode.unknown_topic_or_partition
            if context.services.metadata_cache.exists(where):
                codes[where] = ErrorCode.none
                offsets[where] = CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    metadata=partition.committed_metadata or "",
                    commit_timestamp_ms=context.services.clock.now_ms(),
                    topic_id=None if known is None else known.id_bytes,
                )
    if offsets:
        most = context.services.settings.offset_metadata_max_bytes
        long = {where for where, one in offsets.items() if len(one.metadata) > most}
        kept = {where: one for where, one in offsets.items() if where not in long}
        codes |= dict.fromkeys(long, ErrorCode.offset_metadata_too_large)
        try:
            await _commit(request, kept, context)
        except LakeheadError as error:
            codes |= dict.fromkeys(offsets, _code(error, context.version))
    return await _response(request, codes, context, turns)


async def _commit(
    request: Any, offsets: dict[tuple[str, int], CommittedOffset], context: RequestContext
) -> None:
    groups = context.services.groups
    if not request.group_id:
        raise KafkaError(ErrorCode.invalid_group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    where = OFFSETS_TOPIC, await groups.partition_for(request.group_id)
    partition = context.services.topics.partition(*where)
    if partition is None:
        raise KafkaError(ErrorCode.not_coordinator)
    known = partition.producers
    confirmed = None
    if not known.is_in_transaction(*producer):
        is_adding = context.version >= _ADDING_VERSION
        now_ms = context.services.clock.now_ms()
        confirmed = known.verifications.begin(*producer, NO_SEQUENCE, now_ms, is_adding=is_adding)
        codes = await context.services.transactions.verify(
            request.transactional_id, *producer, [where], is_adding=is_adding
        )
        if codes[where] is not ErrorCode.none:
            raise KafkaError(codes[where])

    def is_confirmed() -> bool:
        if context.services.topics.partition(*where) is not partition:
            # It was elsewhere meanwhile, where the transaction may have ended.
            raise KafkaError(ErrorCode.not_coordinator)
        waiting = known.verifications.get(producer.producer_id)
        return known.is_in_transaction(*producer) or (
            confirmed is not None and waiting is confirmed
        )

    member = TransactionalMember(
        request.group_id,
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        getattr(request, "generation_id", -1),
    )
    await groups.commit_in_transaction(member, producer, offsets, is_confirmed)


def _code(error: LakeheadError, version: int) -> ErrorCode:
    """Return the code that a producer of this version knows what to do with."""
    code = error_code(error)
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < _ABORTABLE_VERSION:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.coordinator_load_in_progress and version < _LOADING_VERSION:
        return ErrorCode.coordinator_not_available
    return code


async def _response(
    request: Any, codes: dict[tuple[str, int], ErrorCode], context: RequestContext, turns: Turns
) -> Any:
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            await turns.step()
            partitions.append(
                entity(
                    context.response,
                    "TxnOffsetCommitResponsePartition",
                    partition_index=partition.partition_index,
                    error_code=codes[topic.name, partition.partition_index],
                )
            )
        await turns.step()
        topics.append(
            entity(
                context.response,
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=partitions,
            )
        )
    return entity(context.response, "TxnOffsetCommitResponse", topics=topics)
