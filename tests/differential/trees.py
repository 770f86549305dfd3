"""Requests and answers as trees of plain values, whatever their version.

A request is given as nested dictionaries; what its version has no field for is left out, and fields
that are not given get what Kafka's own default would be. An answer becomes nested dictionaries in
which what two right brokers may tell differently (ids, addresses, epochs of leaders, wording) is
masked, lists have one order, and configs that only Lakehead has are left out.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, get_args, get_type_hints
from uuid import UUID

from tests.support.wire import BATCH_HEADER

Tree = Any
Label = Callable[[Any], str]
"""Names an id by what it is the id of."""

_LEFT_OUT = frozenset(
    {
        *("throttle_time", "cluster_id", "host", "port", "rack", "node_endpoints"),
        *("current_leader", "last_timestamp", "documentation"),
    }
)
_SIGN_ONLY = frozenset(
    {
        *("leader_epoch", "transaction_start_time", "log_append_time"),
        *("coordinator_epoch", "log_append_time_ms"),
    }
)
_NOW_MS = range(1_750_000_000_000, 9_000_000_000_000)
"""Times of these years; no record is drawn with one."""
_IS_THERE_ONLY = frozenset({"error_message", "batch_index_error_message"})
_LABELLED = frozenset({"topic_id", "producer_id"})
_OURS = ("lakehead.", "errors.deadletterqueue.")
"""Beginnings of the names of configs that Kafka 4.3 has not; it has dead letters from 4.4 on."""
_OF_TOPICS = ("partition_responses", "partitions")
_ZERO: Mapping[str, Any] = {"string": "", "bool": False, "uuid": None, "records": None}


def _nested(hint: Any) -> type[Any] | None:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return one
        for inner in get_args(one):
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                return inner
    return None


def message(cls: type[Any], tree: Mapping[str, Any]) -> Any:
    """Return the message of this class that a tree describes."""
    values, hints = {}, get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind, hint = str(field.metadata.get("kafka_type", "")), hints[field.name]
        if field.name not in tree:
            if field.default is dataclasses.MISSING:
                values[field.name] = _usual(kind, hint)
            continue
        value, inner = tree[field.name], _nested(hint)
        if isinstance(value, Mapping):
            assert inner is not None
            value = message(inner, value)
        elif isinstance(value, list | tuple):
            value = tuple(message(inner, one) if inner else one for one in value)
        elif kind.startswith("timedelta"):
            value = timedelta(milliseconds=value)
        values[field.name] = value
    return cls(**values)


def _usual(kind: str, hint: Any) -> Any:
    if type(None) in get_args(hint):
        return None
    if kind.startswith("timedelta"):
        return timedelta(0)
    return _ZERO.get(kind, 0) if kind else ()


def answer_tree(answer: Any, label: Label) -> Tree:
    """Return what is compared of an answer."""
    if dataclasses.is_dataclass(answer):
        return {
            field.name: _masked(field.name, getattr(answer, field.name), label)
            for field in dataclasses.fields(answer)
            if field.name not in _LEFT_OUT
        }
    if isinstance(answer, tuple | list):
        shown = (one for one in answer if not str(getattr(one, "name", "")).startswith(_OURS))
        return sorted(_merged(answer_tree(one, label) for one in shown), key=repr)
    if isinstance(answer, Enum):
        return answer.name
    if isinstance(answer, timedelta):
        return round(answer.total_seconds() * 1000)
    if isinstance(answer, datetime):
        return round(answer.timestamp() * 1000)
    return answer


def _merged(items: Iterable[Tree]) -> Iterator[Tree]:
    """Yield the items, those of one topic as one."""
    of_topics: dict[str, dict[str, Any]] = {}
    for item in items:
        fields = item if isinstance(item, dict) else {}
        name = next((name for name in _OF_TOPICS if name in fields), "")
        topic_id = fields.get("topic_id")  # of topics that are hidden it is "none"
        topic = fields.get("topic") or fields.get("name")
        topic = topic_id if topic_id and (topic_id != "none" or not topic) else topic
        if not name or not topic:
            yield item
            continue
        first = of_topics.setdefault(str(topic), fields)
        if first is not fields:
            first[name] = sorted([*first[name], *fields[name]], key=repr)
    yield from of_topics.values()


def _masked(name: str, value: Any, label: Label) -> Tree:
    if name == "records":
        return [_batch_tree(*batch, label) for batch in _batches(value or b"")]
    if name in _LABELLED:
        return label(value)
    if name == "session_id":
        return "there" if value else "none"
    if name in _IS_THERE_ONLY:
        return "..." if value else None
    if name == "aborted_transactions":
        value = value or ()  # none and null are the same to every client
    tree = answer_tree(value, label)
    if name == "timestamp" and tree in _NOW_MS:
        return "a broker's clock"
    if name in _SIGN_ONLY and isinstance(tree, int):
        return "negative" if tree < 0 else "there"
    return tree


def _batches(records: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    at = 0
    while at + BATCH_HEADER.size <= len(records):
        fields = BATCH_HEADER.unpack_from(records, at)
        end = at + 12 + fields[1]
        if end > len(records):
            return  # cut, as Kafka does it
        yield fields, records[at + BATCH_HEADER.size : end]
        at = end


def _batch_tree(fields: tuple[int, ...], body: bytes, label: Label) -> Tree:
    base, _, _, magic, _, attributes, last, first_at, max_at, producer, epoch, seq, count = fields
    is_control = bool(attributes & 0x20)
    tree = {
        "base_offset": base,
        "magic": magic,
        "attributes": attributes,
        "last_offset_delta": last,
        "producer": label(producer),
        "epoch": epoch,
        "sequence": seq,
        "count": count,
    }
    if is_control or attributes & 8:
        return tree  # the broker's clock
    return tree | {"first_at": first_at, "max_at": max_at, "body": body.hex()[:80]}


class Difference(NamedTuple):
    """Where two trees differ, and what each has there; None: nothing."""

    path: str
    theirs: Tree
    ours: Tree
    around: tuple[Tree, Tree]
    """The innermost nested fields that have it."""


def differences(
    theirs: Tree, ours: Tree, path: str = "", around: tuple[Tree, Tree] = ({}, {})
) -> Iterator[Difference]:
    """Yield where two trees differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        around = theirs, ours
        codes = [name for name in theirs if name.endswith("error_code")]
        told = [name for name in codes if theirs[name] != ours[name]]
        for name in told or theirs:  # what comes with another code is of no interest
            where = f"{path}.{name}".lstrip(".")
            yield from differences(theirs[name], ours[name], where, around)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for mine, other in zip(theirs, ours, strict=True):
            yield from differences(mine, other, path, around)
    elif isinstance(theirs, list) and isinstance(ours, list):
        for one in (one for one in theirs if one not in ours):
            yield Difference(path, one, None, around)
        for one in (one for one in ours if one not in theirs):
            yield Difference(path, None, one, around)
    elif theirs != ours:
        yield Difference(path, theirs, ours, around)


def unknown_id(number: int) -> UUID:
    """Return an id that nothing has."""
    return UUID(int=number)
