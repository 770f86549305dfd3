"""Draws requests about one share group: of its members, of its administrator, and of clients that
take it for another group.

Records are not deleted: share-partitions take note of a new start of the log at other moments.
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tests.differential.brokers import PRODUCE, Records, Request, TopicId
from tests.differential.chances import Chances, Versions
from tests.differential.trees import Tree

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
DELETE_GROUPS, ALTER_CONFIGS, LIST_GROUPS = 42, 44, 16
SETTLED_MS = 150
"""Time for which a request for records waits: longer than a release takes to be stored."""
LOADED_MS = 600
"""Time for which the first request for a partition waits: longer than its state takes to be loaded
on a machine at work.
"""
SHORT_LOCK_MS = 1_000
_GROUP_RESOURCE = 32
_BASE_MS = 1_700_000_000_000
_GAP, _ACCEPT, _RELEASE, _REJECT, _RENEW = range(5)
_WEIGHTS = {
    "fetch": 24,
    "acknowledge": 18,
    "heartbeat": 14,
    "join": 7,
    "leave": 3,
    "produce": 8,
    "describe": 4,
    "describe_offsets": 5,
    "alter_offsets": 1,
    "delete_offsets": 1,
    "delete_group": 1,
    "list_groups": 3,
    "describe_configs": 1,
    "configure": 1,
    "find": 1,
    "of_another_type": 4,
    "retire": 2,
}
_RETIRED_WEIGHTS = {
    "describe": 4,
    "describe_offsets": 8,
    "alter_offsets": 8,
    "delete_offsets": 4,
    "delete_group": 3,
    "list_groups": 3,
    "heartbeat": 2,
    "acknowledge": 1,
    "produce": 2,
    "of_another_type": 2,
    "start": 6,
}


def _deletes(key: int, response: Tree) -> bool:
    """Return true if a group, or offsets of one, have been deleted."""
    found = {DELETE_GROUPS: "results", DELETE_OFFSETS: "responses"}.get(key, "")
    return any(one["error_code"] == "none" for one in response.get(found, ()))


class ShareDraw:
    """Draws the requests of one round; `follow` what Kafka responds before the next is drawn."""

    def __init__(self, rng: random.Random, prefix: str, versions: Versions) -> None:
        self.c = Chances(rng, prefix, versions)
        self.prefix = prefix
        self.partitions = {f"{prefix}t": 2, f"{prefix}u": 1}
        self.group = f"{prefix}g"
        self.has_short_locks = rng.random() < 0.2
        self.configs = {
            "share.auto.offset.reset": self.c.mostly("earliest", "latest", rarity=0.2),
            "share.record.lock.duration.ms": str(
                SHORT_LOCK_MS if self.has_short_locks else rng.choice([60_000, 45_000])
            ),
            "share.assignment.interval.ms": rng.choice(["0", "15000"]),
            "share.delivery.count.limit": rng.choice(["5", "2", "3", "4"]),
            "share.heartbeat.interval.ms": rng.choice(["5000", "6000"]),
        }
        self._members = [f"{prefix}{letter}" for letter in "abc"]
        self._keeper = f"{prefix}keeper"
        """Has a share session on every partition, so that each has its state in memory."""
        self._epochs: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._held: dict[str, dict[tuple[str, int], list[tuple[int, int]]]] = {}
        self._ends: dict[tuple[str, int], int] = {}
        """Ends of the logs that have records, by partition."""
        self._may_begin_again = self.configs["share.auto.offset.reset"] == "earliest"
        """False if nothing fetches after all have left: the group would begin at another end of a
        log, of which Kafka has stored nothing yet, or outside of it, where Kafka goes to its start.
        """
        self._is_altered = False
        """True if offsets were altered since a member left: the next change would have its own
        epoch, in Kafka the same.
        """
        self._is_retired = False
        self._is_leaving = False
        self._queue: deque[Request] = deque(self._start())
        self._since_acquired = 0

    # What requests are made of.

    def _request(self, key: int, tree: Mapping[str, Any]) -> Request:
        return self.c.request(key, tree)

    def _member(self) -> str:
        return str(self.c.mostly(self.c.rng.choice(self._members), "nobody", rarity=0.03))

    def _group(self) -> str:
        return str(self.c.mostly(self.group, f"{self.prefix}h", "", rarity=0.04))

    def _topics(self) -> list[str]:
        return self.c.some([*self.partitions], 2)

    def _indexes(self, topic: str) -> list[int]:
        every = list(range(self.partitions.get(topic, 1)))
        indexes: list[int] = self.c.mostly(self.c.some(every, 2), [9], [-1], [0, 9], rarity=0.06)
        return sorted(indexes)

    def _heartbeat(self, member: str, epoch: int, topics: Sequence[str] | None) -> Request:
        tree = {
            "group_id": self.group,
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topic_names": topics,
        }
        return self._request(HEARTBEAT, tree)

    def _share_fetch(
        self,
        member: str,
        epoch: int,
        places: Sequence[tuple[str, int]],
        verdicts: Mapping[tuple[str, int], Any] | None = None,
        **fields: Any,
    ) -> Request:
        given = {
            "group_id": self.group,
            "member_id": member,
            "share_session_epoch": epoch,
            "max_wait": SETTLED_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 24,
            "max_records": 500,
            "batch_size": 500,
            "topics": self._named(places, verdicts or {}),
            "forgotten_topics_data": [],
            **fields,
        }
        return self._request(FETCH, given)

    def _named(
        self, places: Sequence[tuple[str, int]], verdicts: Mapping[tuple[str, int], Any]
    ) -> list[dict[str, Any]]:
        of_topics: dict[str, list[dict[str, Any]]] = {}
        for topic, index in dict.fromkeys([*places, *verdicts]):
            batches = verdicts.get((topic, index), [])
            one = {"partition_index": index, "acknowledgement_batches": batches}
            of_topics.setdefault(topic, []).append(one)
        return [
            {"topic_id": TopicId(topic), "partitions": partitions}
            for topic, partitions in of_topics.items()
        ]

    def _places(self) -> list[tuple[str, int]]:
        topics = self.c.mostly(self._topics(), [f"{self.prefix}none"], rarity=0.03)
        return [(topic, index) for topic in topics for index in self._indexes(topic)]

    def _verdicts(self, member: str) -> dict[tuple[str, int], Any]:
        """Verdicts, mostly on what the member has."""
        held = self._held.get(member, {})
        places = [place for place, ranges in held.items() if ranges]
        found: dict[tuple[str, int], Any] = {}
        if places:
            for place in self.c.some(places, 2):
                found[place] = [self._batch(*one) for one in self.c.some(held[place], 3)]
                found[place].sort(key=lambda batch: batch["first_offset"])
        if not found or self.c.rng.random() < 0.08:
            topic = self.c.rng.choice([*self.partitions])
            first = self.c.rng.choice([0, 0, 1, 2, 5, 40])
            found[topic, self.c.rng.randrange(self.partitions[topic])] = [
                self._batch(first, first + self.c.rng.choice([0, 0, 1, 4]))
            ]
        for batches in found.values():
            if self.c.rng.random() < 0.04:
                batches.append(dict(batches[-1]))  # overlaps, or repeats
            if self.c.rng.random() < 0.03:
                batches.reverse()
        return found

    def _batch(self, first: int, last: int) -> dict[str, Any]:
        c = self.c
        if last > first and c.rng.random() < 0.4:
            last = c.rng.randrange(first, last + 1)
        if last > first and c.rng.random() < 0.2:
            first = c.rng.randrange(first, last + 1)
        count = last - first + 1
        usual = (_ACCEPT, _ACCEPT, _RELEASE, _RELEASE, _REJECT, _GAP)
        kinds = [c.rng.choice(usual)]
        if count < 20 and c.rng.random() < 0.3:
            kinds = [c.rng.choice(usual) for _ in range(count)]
        kinds = c.mostly(kinds, [_RENEW], [9], [-1], [], [_ACCEPT] * (count + 1), rarity=0.06)
        first, last = c.mostly((first, last), (last + 1, first), (first - 1, last), rarity=0.04)
        return {"first_offset": first, "last_offset": last, "acknowledge_types": kinds}

    # Phases.

    def _start(self) -> list[Request]:
        """The group has a state of every partition, and each is in memory; nobody is a member."""
        self._is_retired = False
        forgotten: list[dict[str, Any]] = []
        requests = [
            self._heartbeat(self._keeper, 0, [*self.partitions]),
            self._heartbeat(self._keeper, -1, None),
        ]
        for epoch, (topic, index) in enumerate(self._every()):  # one by one: loading takes its time
            fields: dict[str, Any] = {
                "max_records": 1,
                "max_wait": LOADED_MS,
                "forgotten_topics_data": forgotten,
            }
            requests.append(self._share_fetch(self._keeper, epoch, [(topic, index)], **fields))
            forgotten = [{"topic_id": TopicId(topic), "partitions": [index]}]
        return requests

    def _retire(self) -> list[Request]:
        """All members leave, and all share sessions end, also those of which Kafka's response was
        an error. Before, each has every partition: of others Kafka releases no records.
        """
        self._is_retired = self._is_leaving = True
        requests = []
        for member in (*self._members, self._keeper):
            if member in self._sessions:
                epoch, every = self._sessions[member], self._every()
                requests.append(self._share_fetch(member, epoch, every, max_records=0))
            requests.append(self._end_of_session(member))
        return [*requests, *(self._heartbeat(member, -1, None) for member in self._epochs)]

    def _every(self) -> list[tuple[str, int]]:
        return [(topic, n) for topic, count in self.partitions.items() for n in range(count)]

    def is_reconnection_due(self) -> bool:
        """Return true, once, when all have left: their connections end, as those of clients do, and
        Kafka forgets what it has of the group in memory.
        """
        is_due = self._is_leaving and not self._queue
        self._is_leaving = self._is_leaving and not is_due
        return is_due

    def _end_of_session(self, member: str) -> Request:
        if self.c.rng.random() < 0.5:
            return self._share_fetch(member, -1, [])
        tree = {
            "group_id": self.group,
            "member_id": member,
            "share_session_epoch": -1,
            "topics": [],
        }
        return self._request(ACKNOWLEDGE, tree)

    def is_pause_due(self) -> bool:
        """Return true if the next request would depend on when a lock ends."""
        if not self.has_short_locks or self._since_acquired == 0:
            return False
        is_due = self._since_acquired > 2 or self.c.rng.random() < 0.4
        self._since_acquired = 0 if is_due else self._since_acquired
        if is_due:
            self._held.clear()
        return is_due

    def draw(self) -> Request:
        """Return the next request."""
        if not self._queue:
            weights = dict(_RETIRED_WEIGHTS if self._is_retired else _WEIGHTS)
            if not self._may_begin_again:
                weights.pop("start", None)
            if self._is_altered:
                del weights["alter_offsets"]
            kind = self.c.rng.choices(list(weights), list(weights.values()))[0]
            drawn = getattr(self, f"_draw_{kind}")()
            self._queue.extend(drawn if isinstance(drawn, list) else [drawn])
        return self._queue.popleft() if self._queue else self.draw()

    # Requests of members.

    def _draw_retire(self) -> list[Request]:
        return self._retire()

    def _draw_start(self) -> list[Request]:
        return self._start()

    def _draw_join(self) -> Request:
        c = self.c
        topics = c.mostly(self._topics(), [], None, [f"{self.prefix}none"], [""], rarity=0.06)
        name = c.mostly(c.rng.choice(self._members), "", "x" * 37, " ", rarity=0.04)
        request = self._heartbeat(name, 0, topics)
        group, rack = self._group(), c.mostly(None, "r1", "", rarity=0.1)
        return self._request(HEARTBEAT, {**request.tree, "group_id": group, "rack_id": rack})

    def _draw_heartbeat(self) -> Request:
        c = self.c
        known = [*self._epochs]
        member = c.mostly(c.rng.choice(known), "nobody", rarity=0.04) if known else self._member()
        epoch = self._epochs.get(member, c.rng.choice([0, 1, 5]))
        epoch = c.mostly(epoch, epoch - 1, epoch + 1, -2, 0, rarity=0.1)
        topics = c.mostly(None, self._topics(), [], rarity=0.15)
        request = self._heartbeat(member, epoch, topics)
        return self._request(HEARTBEAT, {**request.tree, "group_id": self._group()})

    def _draw_leave(self) -> Request:
        member = self.c.rng.choice([*self._epochs]) if self._epochs else self._member()
        return self._heartbeat(member, self.c.mostly(-1, -2, -3, rarity=0.1), None)

    def _draw_fetch(self) -> Request:
        c = self.c
        member = c.rng.choice(self._members)
        at = self._sessions.get(member)
        if at is None:
            epoch = c.mostly(0, 1, -1, rarity=0.08)
            places = self._places()
        else:
            epoch = c.mostly(at, 0, at + 1, 77, -1, -2, rarity=0.12)
            places = self._places() if epoch == 0 or c.rng.random() < 0.2 else []
        verdicts = self._verdicts(member) if at is not None and c.rng.random() < 0.35 else {}
        forgotten = []
        if at is not None and c.rng.random() < 0.08:
            forgotten = [
                {"topic_id": TopicId(topic), "partitions": self._indexes(topic)}
                for topic in self._topics()
            ]
        fields: dict[str, Any] = {
            "max_records": c.mostly(500, 1, 2, 3, 0, rarity=0.5),
            "batch_size": c.mostly(500, 1, 2, 0, rarity=0.3),
            "share_acquire_mode": c.mostly(0, 1, 2, rarity=0.4),
            "max_bytes": c.mostly(1 << 24, 1, 400, 0, rarity=0.1),
            "min_bytes": c.mostly(1, 0, rarity=0.1),
            "forgotten_topics_data": forgotten,
        }
        if c.rng.random() < 0.06:
            fields |= {"is_renew_ack": True}
            if c.rng.random() < 0.8:
                fields |= {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait": 0}
        group = c.mostly(self.group, None, "", f"{self.prefix}h", rarity=0.03)
        name = c.mostly(member, "", "x" * 37, rarity=0.02)
        return self._share_fetch(name, epoch, places, verdicts, group_id=group, **fields)

    def _draw_acknowledge(self) -> Request:
        c = self.c
        able = [m for m in self._members if m in self._sessions]
        member = c.rng.choice(able) if able else c.rng.choice(self._members)
        at = self._sessions.get(member, c.rng.choice([0, 1, -1]))
        verdicts = self._verdicts(c.mostly(member, *self._members, rarity=0.05))
        tree = {
            "group_id": c.mostly(self.group, None, "", f"{self.prefix}h", rarity=0.03),
            "member_id": c.mostly(member, "", "nobody", rarity=0.03),
            "share_session_epoch": c.mostly(at, 0, at + 1, at - 1, 77, -1, rarity=0.12),
            "is_renew_ack": c.mostly(False, True, rarity=0.15),
            "topics": self._named([], verdicts),
        }
        if tree["is_renew_ack"]:
            for topic in tree["topics"]:
                for partition in topic["partitions"]:
                    for batch in partition["acknowledgement_batches"]:
                        if c.rng.random() < 0.7:
                            batch["acknowledge_types"] = [_RENEW]
        if c.rng.random() < 0.04:
            tree["topics"] = self._named(self._places(), {})
        return self._request(ACKNOWLEDGE, tree)

    # Records.

    def _draw_produce(self) -> Request:
        c = self.c
        topic = c.rng.choice([*self.partitions])
        fields = {
            "values": (b"v" * 5,) * c.rng.choice([1, 2, 3, 5, 8]),
            "timestamp": _BASE_MS + 1000 * c.rng.randrange(50),
            "attributes": 0,
        }
        part = {
            "index": c.rng.randrange(self.partitions[topic]),
            "records": Records(None, 0, tuple(fields.items())),
        }
        one = {"name": topic, "topic_id": TopicId(topic), "partition_data": [part]}
        tree = {"transactional_id": None, "acks": -1, "timeout": 5000, "topic_data": [one]}
        return Request(key=PRODUCE, version=12, tree=tree)

    # Requests of an administrator.

    def _draw_describe(self) -> Request:
        groups = self.c.mostly(
            *([self.group], ["", self.group], ["nobody", self.group], [f"{self.prefix}h"]),
            rarity=0.15,
        )
        tree = {
            "group_ids": groups,
            "include_authorized_operations": self.c.mostly(False, True, rarity=0.3),
        }
        return self._request(DESCRIBE, tree)

    def _draw_describe_offsets(self) -> Request:
        c = self.c
        some = [
            {"topic_name": topic, "partitions": self._indexes(topic)} for topic in self._topics()
        ]
        none = [{"topic_name": f"{self.prefix}none", "partitions": [0]}]
        groups = [
            {
                "group_id": group,
                "topics": c.mostly(None, some, none, [], [*some, *none], rarity=0.5),
            }
            for group in c.mostly([self.group], ["nobody"], [""], [self.group, "nobody"])
        ]
        return self._request(DESCRIBE_OFFSETS, {"groups": groups})

    def _start_offset(self, topic: str, index: int) -> int:
        end = self._ends.get((topic, index), 0)
        rare = (-1, -2, end + 3) if self._is_retired else (-1,)
        offset = int(self.c.mostly(self.c.rng.randrange(end + 1), *rare, rarity=0.1))
        self._may_begin_again = self._may_begin_again and -1 <= offset <= end
        return offset

    def _draw_alter_offsets(self) -> Request:
        c = self.c
        topics = [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": index, "start_offset": self._start_offset(topic, index)}
                    for index in self._indexes(topic)
                ],
            }
            for topic in c.mostly(self._topics(), [f"{self.prefix}none"], [], rarity=0.1)
        ]
        group = c.mostly(self.group, "", f"{self.prefix}h", rarity=0.08)
        return self._request(ALTER_OFFSETS, {"group_id": group, "topics": topics})

    def _draw_delete_offsets(self) -> Request:
        c = self.c
        names = c.mostly(self._topics(), [f"{self.prefix}none"], [], rarity=0.15)
        group = c.mostly(self.group, "", "nobody", f"{self.prefix}h", rarity=0.1)
        topics = [{"topic_name": name} for name in names]
        return self._request(DELETE_OFFSETS, {"group_id": group, "topics": topics})

    def _draw_delete_group(self) -> Request:
        names = self.c.mostly(
            *([self.group], ["nobody"], [""], [f"{self.prefix}h", self.group]), rarity=0.2
        )
        return self._request(DELETE_GROUPS, {"groups_names": names})

    def _draw_list_groups(self) -> Request:
        c = self.c
        states = (["Stable"], ["empty", "stable"], ["EMPTY"], ["nope"], ["Dead"], ["Assigning"])
        types = (["share"], ["Share", "classic"], ["consumer"], ["nope"], ["SHARE"])
        tree = {
            "states_filter": c.mostly([], *states, rarity=0.5),
            "types_filter": c.mostly([], *types, rarity=0.5),
        }
        return Request(key=LIST_GROUPS, version=c.version(LIST_GROUPS, least=5), tree=tree)

    def _draw_find(self) -> Request:
        c = self.c
        keys = (f"{self.group}:x:0", "a:b", "", self.group, f"{self.group}:{'A' * 22}:0")
        tree = {"key_type": c.mostly(2, 0, rarity=0.3), "coordinator_keys": [c.rng.choice(keys)]}
        return Request(key=10, version=c.version(10, least=4), tree=tree)

    def _draw_configure(self) -> Request:
        c = self.c
        values: Mapping[str, Sequence[str | None]] = {
            "share.heartbeat.interval.ms": ("5000", "15000", "4999", "15001", "x"),
            "share.session.timeout.ms": ("45000", "60000", "44999", "60001"),
            "share.delivery.count.limit": ("2", "10", "1", "11", "0", "-1"),
            "share.partition.max.record.locks": ("100", "4000", "99", "4001"),
            "share.isolation.level": ("read_committed", "nope", "READ_COMMITTED"),
            "share.auto.offset.reset": ("latest", "nope", "by_duration:PT1H", "by_duration:x"),
            "share.renew.acknowledge.enable": ("true", "false", "nope"),
            "share.assignment.interval.ms": ("0", "15000", "15001", "-1"),
            "share.record.lock.duration.ms": ("60001", "999", "0", "-1"),
            "share.nope": ("1",),
        }
        names = c.some([*values], 2)
        self._may_begin_again &= "share.auto.offset.reset" not in names
        changes = [
            {
                "name": name,
                "config_operation": c.mostly(0, 1, rarity=0.1),
                "value": c.rng.choice(values[name]),
            }
            for name in names
        ]
        return self.change(changes, validate_only=c.mostly(False, True, rarity=0.2))

    def change(self, changes: Sequence[Mapping[str, Any]], **fields: Any) -> Request:
        """Return a change of the group's configs."""
        resource = {
            "resource_type": _GROUP_RESOURCE,
            "resource_name": self.group,
            "configs": changes,
        }
        return self._request(ALTER_CONFIGS, {"resources": [resource], **fields})

    def first_change(self) -> Request:
        """Return the change that gives the group its configs."""
        changes = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in self.configs.items()
        ]
        return self.change(changes)

    def _draw_describe_configs(self) -> Request:
        resource = {
            "resource_type": _GROUP_RESOURCE,
            "resource_name": self.group,
            "configuration_keys": None,
        }
        tree = {"resources": [resource], "include_synonyms": self.c.mostly(False, True, rarity=0.4)}
        return Request(key=32, version=4, tree=tree)

    # Requests of clients that take the group for another.

    def _draw_of_another_type(self) -> Request:
        c = self.c
        offset = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        name = f"{self.prefix}t"
        joining = {
            "group_id": self.group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": c.mostly("", "m"),
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"r"}],
        }
        heartbeat = {
            "group_id": self.group,
            "member_id": "m",
            "member_epoch": c.rng.choice([0, 1, -1]),
            "rebalance_timeout": 5000,
            "subscribed_topic_names": [name],
            "topic_partitions": [],
        }
        committed = {
            "group_id": self.group,
            "generation_id_or_member_epoch": c.rng.choice([-1, 0, 3]),
            "member_id": c.mostly("", "m"),
            "retention_time": -1,
            "topics": [{"name": name, "topic_id": TopicId(name), "partitions": [offset]}],
        }
        groups = [{"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": None}]
        forgotten = [{"name": name, "partitions": [{"partition_index": 0}]}]
        key, version, tree = c.rng.choice(
            [
                (11, 9, joining),
                (12, 4, {"group_id": self.group, "generation_id": 0, "member_id": "m"}),
                (13, 5, {"group_id": self.group, "members": [{"member_id": "m"}]}),
                (14, 5, {"group_id": self.group, "generation_id": 0, "member_id": "m"}),
                (68, 1, heartbeat),
                (69, 1, {"group_ids": [self.group]}),
                (15, c.version(15), {"groups": [self.group]}),
                (8, c.version(8, least=8), committed),
                (9, c.version(9, least=8), {"groups": groups}),
                (47, 0, {"group_id": self.group, "topics": forgotten}),
            ]
        )
        return Request(key=key, version=version, tree=tree)

    # What Kafka responds.

    def follow(self, request: Request, response: Tree) -> None:
        """Take note of epochs, share sessions, and what members have."""
        self._since_acquired += self._since_acquired > 0
        tree = request.tree
        code = response.get("error_code", "none") if isinstance(response, dict) else "silent"
        if code == "unknown_server_error" and request.key in (FETCH, ACKNOWLEDGE):
            self._follow_failure(tree)
        if code != "none":
            return
        if request.key == PRODUCE:
            self._follow_produce(tree, response)
        elif request.key == ALTER_OFFSETS:
            self._is_altered = True
            if self.has_short_locks and not self._is_retired:
                self._queue.extend(self._retire())  # a lock that ends has a leader note it
        elif not self._is_retired and _deletes(request.key, response):
            self._queue.extend(self._retire())  # what the leader has in memory is not the group's
        if tree.get("group_id") != self.group:
            return
        member = tree.get("member_id", "")
        if request.key == HEARTBEAT:
            self._epochs.pop(member, None)
            if response["member_epoch"] >= 0:
                self._epochs[member] = response["member_epoch"]
            else:
                self._is_altered = False
        elif request.key in (FETCH, ACKNOWLEDGE):
            self._follow_session(member, tree["share_session_epoch"])
            self._drop(member, tree["topics"])
            for topic in response["responses"] if request.key == FETCH else ():
                for partition in topic["partitions"]:
                    self._take(member, topic["topic_id"], partition)

    def _follow_failure(self, tree: Tree) -> None:
        """Kafka failed inside, after the share session had begun or gone on: the member begins it
        again.
        """
        member = tree["member_id"]
        if tree["group_id"] == self.group and tree["share_session_epoch"] >= 0:
            self._queue.appendleft(self._share_fetch(member, 0, self._every(), max_records=0))

    def _follow_produce(self, tree: Tree, response: Tree) -> None:
        (topic,), (answered,) = tree["topic_data"], response["responses"]
        (part,), (taken,) = topic["partition_data"], answered["partition_responses"]
        if taken["error_code"] == "none":
            count = len(dict(part["records"].fields)["values"])
            self._ends[topic["name"], part["index"]] = taken["base_offset"] + count

    def _follow_session(self, member: str, epoch: int) -> None:
        if epoch == -1:
            self._sessions.pop(member, None)
            self._held.pop(member, None)
        else:
            self._sessions[member] = epoch + 1

    def _drop(self, member: str, topics: Sequence[Mapping[str, Any]]) -> None:
        held = self._held.get(member, {})
        for topic in topics:
            for partition in topic["partitions"]:
                place = topic["topic_id"].name, partition["partition_index"]
                if partition["acknowledgement_batches"] and self.c.rng.random() < 0.8:
                    held.pop(place, None)

    def _take(self, member: str, topic: str, partition: Mapping[str, Any]) -> None:
        place = topic, partition["partition_index"]
        for one in partition["acquired_records"] or ():
            ranges = self._held.setdefault(member, {}).setdefault(place, [])
            ranges.append((one["first_offset"], one["last_offset"]))
            self._since_acquired = max(self._since_acquired, 1)
