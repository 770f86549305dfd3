"""Sessions of the members of a group, by what its shard does when they end, in virtual time."""

import asyncio

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.members import GroupMemory
from tests.simulation.loop import LoopClock, simulate
from tests.unit.test_group_memory import Node

SESSION_S = 10.0


def test_a_session_that_a_request_made_a_little_longer_ends_in_time() -> None:
    """A consumer that closes commits right after a heartbeat. librdkafka's own suite deletes its
    group six milliseconds after the session.
    """

    async def world() -> None:
        loop = asyncio.get_running_loop()
        node = Node(GroupMemory(), LoopClock(loop))
        member = await node.joined(0)
        await node.synced(0, member, 10)
        shard = node.shards[0]
        await asyncio.sleep(0.004)
        code = shard.heartbeat("g0", member.member_id, None, member.generation)
        assert code is ErrorCode.none
        await asyncio.sleep(SESSION_S - 0.002)
        assert len(shard.groups["g0"].group.members) == 1
        await asyncio.sleep(0.004)
        assert not shard.groups["g0"].group.members
        shard.close(ErrorCode.not_coordinator)
        await node.scope.close()

    simulate(world, seed=1)
