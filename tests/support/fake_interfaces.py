"""An EC2 of network interfaces: one instance for each, one interface at each of its indexes.

What DescribeNetworkInterfaces tells may be old, as with the real one. `trouble` is asked before and
after each call, and may raise: before, nothing has happened; after, the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lakehead.broker.ec2.slots import NetworkInterface
from lakehead.storage.aws.client import AwsRefused

T = TypeVar("T")
Trouble = Callable[[str, bool], None]


@dataclass
class FakeInterfaces:
    table: dict[str, NetworkInterface] = field(default_factory=dict)
    indexes: dict[tuple[str, int], str] = field(default_factory=dict)
    """Interfaces by (instance, index)."""
    seen: dict[str, NetworkInterface] = field(default_factory=dict)
    """What is told of the table, until the next `catch_up`."""
    lags: bool = False
    trouble: Trouble = lambda call, is_after: None
    calls: list[str] = field(default_factory=list)

    def add_slot(
        self, name: str, node_id: int, zone: str = "z-1a", cluster: str = "c", bucket: str = "b"
    ) -> None:
        tags = {
            "lakehead:bucket": bucket,
            "lakehead:cluster": cluster,
            "lakehead:slot": name,
            "lakehead:node-id": str(node_id),
        }
        interface_id = f"eni-{bucket}-{cluster}-{name}"
        self.table[interface_id] = NetworkInterface(
            interface_id=interface_id, zone=zone, address=f"10.0.0.{node_id}", tags=tags
        )
        self.catch_up()

    def catch_up(self) -> None:
        self.seen = dict(self.table)

    def holders(self) -> dict[str, str]:
        """Instances by the slot that they have."""
        return {
            one.tags["lakehead:slot"]: one.instance_id
            for one in self.table.values()
            if one.instance_id
        }

    def end(self, instance_id: str) -> None:
        """EC2 ends an instance: what it had is free."""
        for key in [key for key in self.indexes if key[0] == instance_id]:
            interface_id = self.indexes.pop(key)
            self.table[interface_id] = replace(self.table[interface_id], instance_id="")

    async def interfaces(self, tags: Mapping[str, str]) -> Sequence[NetworkInterface]:
        return await self._call("interfaces", lambda: self._found(tags))

    async def attach(self, interface_id: str, instance_id: str, device_index: int) -> None:
        await self._call("attach", lambda: self._attach(interface_id, instance_id, device_index))

    async def _call(self, name: str, call: Callable[[], T]) -> T:
        self.calls.append(name)
        await asyncio.sleep(0.01)
        self.trouble(name, False)
        answer = call()
        await asyncio.sleep(0.01)
        self.trouble(name, True)
        return answer

    def _found(self, tags: Mapping[str, str]) -> list[NetworkInterface]:
        if not self.lags:
            self.catch_up()
        return [
            one
            for one in self.seen.values()
            if all(one.tags.get(name) == value for name, value in tags.items())
        ]

    def _attach(self, interface_id: str, instance_id: str, device_index: int) -> None:
        if self.table[interface_id].instance_id:
            raise AwsRefused("InvalidNetworkInterface.InUse", f"{interface_id} is in use")
        if (instance_id, device_index) in self.indexes:
            raise AwsRefused("InvalidParameterValue", f"has an interface at index {device_index}")
        self.indexes[instance_id, device_index] = interface_id
        self.table[interface_id] = replace(self.table[interface_id], instance_id=instance_id)
