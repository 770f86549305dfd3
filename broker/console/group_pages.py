"""The pages of groups that this node coordinates, of consumers and of share groups, with lag."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from lakehead.broker.console import pages
from lakehead.broker.console.lag_history import LagHistory, Lags, LagSampler, lags_of_topics
from lakehead.broker.console.page_request import Reply, Request, json_reply
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.coordinator.group.consumer.consumer_members import ConsumerMember
from lakehead.broker.coordinator.group.coordinator import GroupDescription
from lakehead.broker.coordinator.group.group_metadata import GroupKind
from lakehead.broker.coordinator.group.share.share_group import ShareGroupMember
from lakehead.broker.observability.group_lag import partition_lags
from lakehead.broker.observability.share_lag import share_lags
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import LakeheadError, NotFound

_SHARE_GROUPS_SAMPLED = 20
_GROUPS_SHOWN = 50
_ROWS_MAX = 500
"""Partitions of a group on its page: those with the largest lags."""


class GroupPages:
    """Makes the pages. Samples of lag are taken from now on."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._node = renderer.node
        self._history = LagHistory()
        self._share_lags: Lags = {}
        """Those of the last sample: to look at them takes a request to the leader of each
        partition.
        """
        self._sampler = LagSampler(self._history, self._sample, renderer.node.clock.now_ms)
        self._sampler.start()

    def close(self) -> None:
        """Take no more samples."""
        self._sampler.close()

    def _sample(self) -> Lags:
        self._share_lags = self._renderer.on_loop(self._share_sample())
        return {**lags_of_topics(self._node), **self._share_lags}

    async def _share_sample(self) -> Lags:
        found = Counter[tuple[str, str]]()
        if not self._node.is_ready:
            return found
        try:
            groups = await self._node.groups.list_groups()
        except (KafkaError, LakeheadError):
            return found
        shares = [one.group_id for one in groups if one.kind is GroupKind.SHARE]
        for group in shares[:_SHARE_GROUPS_SAMPLED]:
            try:
                lags = await share_lags(self._node, group)
            except (KafkaError, LakeheadError):
                continue
            for one in lags:
                if one.records is not None:
                    found[group, one.topic] += one.records
        return found

    def groups(self, request: Request) -> Reply:
        """Return the groups that the viewer sees."""
        text = request.query.get("q", "")
        groups = self._renderer.on_loop(pages.groups_page(request.viewer, text))
        lags = {**lags_of_topics(self._node), **self._share_lags}
        seen = set(self._renderer.seen(request.viewer, {topic for _, topic in lags}))
        totals = Counter[str]()
        for (group, topic), lag in lags.items():
            if topic in seen:
                totals[group] += lag
        nodes = len(self._node.state.live_node_ids)
        return self._renderer.render(
            "groups.html", groups=groups, lags=totals, nodes=nodes, text=text
        )

    def of_topic(
        self, viewer: Viewer, topic: str, partition: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the consumer groups of this node that the viewer sees and that have committed
        offsets in a topic, or a partition of it, with their lag there: `_GROUPS_SHOWN`, those with
        the largest lags.
        """
        lags: dict[str, int] = {}
        for group, offsets in self._node.groups.committed():
            own = {
                key: one
                for key, one in list(offsets.items())
                if key[0] == topic and partition in {None, key[1]}
            }
            if own:
                lags[group] = sum(one.records for one in partition_lags(self._node, own))
        seen = set(self._renderer.on_loop(pages.allowed(lags, viewer.sees_group)))
        rows = sorted((-lag, one) for one, lag in lags.items() if one in seen)
        return [{"group": one, "lag": -lag} for lag, one in rows[:_GROUPS_SHOWN]]

    def group(self, request: Request) -> Reply:
        """Return a group with its lag in each partition."""
        found = self._found(request)
        lags = sorted(found["lags"], key=lambda row: -(row["lag"] or 0))
        shown = sorted(lags[:_ROWS_MAX], key=lambda row: (row["topic"], row["partition"]))
        return self._renderer.render(
            "group.html", **found | {"lags": shown, "rows": len(lags), "total": _total(lags)}
        )

    def lag(self, request: Request) -> Reply:
        """Return the lag of a group now and, if `history` is requested, as it was."""
        found = self._found(request)
        response: dict[str, Any] = {
            "time_ms": self._node.clock.now_ms(),
            "lag": _total(found["lags"]),
        }
        if "history" in request.query:
            response["history"] = self._history.of_group(
                found["group"], lambda topics: self._renderer.seen(request.viewer, topics)
            )
        return json_reply(response)

    def _found(self, request: Request) -> dict[str, Any]:
        name = request.query.get("id", "")
        self._renderer.require(lambda: request.viewer.sees_group(name), f"describe group {name}")
        found = self._renderer.on_loop(self._described(name))
        if found is None:
            raise NotFound(f"there is no group {name}")
        seen = set(self._renderer.seen(request.viewer, {row["topic"] for row in found["lags"]}))
        return found | {"lags": [row for row in found["lags"] if row["topic"] in seen]}

    async def _described(self, name: str) -> dict[str, Any] | None:
        """Return a group; None if this node has none of that name. Raises KafkaError where another
        node coordinates it.
        """
        node = self._node
        found = await node.groups.describe(name)
        if found is None:
            return None
        if found.kind is GroupKind.SHARE:
            lags = [pages.share_row(one) for one in await share_lags(node, name)]
        else:
            lags = pages.lag_rows(node, await node.groups.offsets(name))
        return {
            "group": name,
            "type": found.kind.value,
            "state": found.state.value,
            "members": await self._members(found),
            "lags": lags,
        }

    async def _members(self, group: GroupDescription) -> list[dict[str, Any]]:
        """Return the members, `_ROWS_MAX` at most, without the names of topics."""
        groups, name = self._node.groups, group.group_id
        if group.kind is GroupKind.CLASSIC:
            members = () if group.snapshot is None else group.snapshot.members[:_ROWS_MAX]
            return [_member(one.member_id, one.client_id, one.client_host, None) for one in members]
        assigned: Iterable[ConsumerMember | ShareGroupMember] = (
            (await groups.share_group(name)).members.values()
            if group.kind is GroupKind.SHARE
            else (await groups.describe_consumer_group(name)).members
        )
        return [
            _member(
                one.member_id,
                one.metadata.client_id,
                one.metadata.client_host,
                one.current.assigned,
            )
            for one in islice(assigned, _ROWS_MAX)
        ]


def _member(
    member_id: str, client: str, host: str, assigned: Mapping[bytes, Collection[int]] | None
) -> dict[str, Any]:
    count = None if assigned is None else sum(map(len, assigned.values()))
    return {"id": member_id, "client": client, "host": host, "partitions": count}


def _total(lags: list[dict[str, Any]]) -> int:
    return sum(row["lag"] or 0 for row in lags)
