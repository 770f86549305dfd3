"""A host has its volume back: from who recovered it, or from the machine it replaces.

A machine is what the device tells apart (an instance, an initiator); a host id is a name, and two
machines may have the same one: an instance in the place of another has its `host.id`, thus its key.
"""

import asyncio
import random

import pytest
from immutables import Map

from lakehead.storage.errors import Fenced, SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.stream.registration import claim
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.wal import BlockWal
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation import reservation_key
from lakehead.storage.wal.reservation_memory import (
    FaultyReservation,
    MemoryReservation,
    ReservationTable,
)
from tests.simulation.loop import simulate
from tests.support.wal_tools import Listener, append_released, recovered, started
from tests.unit.test_wal_takeover import Disk

NOBODY_LIVES = Claim((), frozenset())


async def written(disk: Disk, host: str, machine: str = "") -> tuple[BlockWal, int]:
    await disk.format(host)
    wal = await disk.open(host, machine=machine)
    return wal, await append_released(wal, await started(wal, 1), b"x")


async def test_preempting_the_own_key_does_what_the_standard_says() -> None:
    """SPC-4, 5.12.11.4; NVMe base specification, 8.1.22.5."""
    table = ReservationTable()
    old, new, other = (MemoryReservation(table, name) for name in ("old", "new", "other"))
    for machine, key in ((old, 1), (new, 1), (other, 2)):
        await machine.register(key)
    assert await new.preempt(1, 1), "nobody holds it: all with the key are unregistered"
    assert (table.keys, table.holder) == ({"other": 2}, None)
    await old.register(1)
    assert await old.reserve(1)
    await new.register(1)
    assert not await new.reserve(1), "another machine with the same key is another machine"
    assert await new.preempt(1, 1), "the holder has the key: the caller is left"
    assert (table.keys, table.holder) == ({"other": 2, "new": 1}, "new")
    assert await new.preempt(1, 1), "the holder preempts itself, and stays"
    assert (table.keys, table.holder) == ({"other": 2, "new": 1}, "new")
    assert await other.preempt(2, 1)
    await old.register(1)
    await new.register(1)
    assert await new.preempt(1, 1), "a stranger holds it: the caller goes, too"
    assert (table.keys, table.holder) == ({"other": 2}, "other")


async def test_an_instance_in_place_of_another_has_its_volume() -> None:
    """The device still knows the dead one as the holder: its key is the new one's own."""
    disk = Disk()
    _, end = await written(disk, "a", "instance 1")
    with pytest.raises(SettingsError, match="held by another host"):
        await disk.open("a", machine="instance 2")
    wal = await disk.open("a", machine="instance 2", claim=NOBODY_LIVES)
    assert [r.end_position for r in await recovered(wal)] == [end]
    assert disk.table.holder == "instance 2"
    assert list(disk.table.keys) == ["instance 2"]


@pytest.mark.parametrize("nth", range(2, 7))
@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_call_that_fails_on_the_way_back_is_resolved(nth: int, has_effect: bool) -> None:
    disk = Disk()
    old, end = await written(disk, "a", "instance 1")
    wal = await disk.open(
        "a",
        machine="instance 2",
        claim=NOBODY_LIVES,
        wrap=lambda r: FaultyReservation(r, nth=nth, has_effect=has_effect),
    )
    assert [r.end_position for r in await recovered(wal)] == [end]
    with pytest.raises(Fenced):
        await old.trim(end)


async def test_a_neighbour_on_the_new_instance_takes_over_what_the_old_one_left() -> None:
    disk = Disk()
    old, end = await written(disk, "a", "instance 1")
    taken = await disk.take("a", machine="instance 2")
    assert [r.end_position for r in await recovered(taken)] == [end]
    with pytest.raises(Fenced):
        await old.trim(end)


async def test_a_volume_is_had_back_from_who_recovered_it() -> None:
    disk = Disk()
    _, end = await written(disk, "a", "instance 1")
    taker = await disk.take("b")
    await recovered(taker)
    wal = await disk.open("a", machine="instance 2", claim=Claim(("b",), frozenset({7})))
    with pytest.raises(Fenced):
        await taker.trim(end)  # it was at it still
    assert len(await recovered(wal)) == 1
    with pytest.raises(SettingsError, match=r"held by another host \(a\)"):
        await disk.open("b")


async def test_a_volume_is_had_back_from_a_taker_that_died_unsigned() -> None:
    disk = Disk()
    await written(disk, "a")
    reservation = MemoryReservation(disk.table, "b")
    await reservation.register(reservation_key("c", "b"))
    assert await reservation.preempt(reservation_key("c", "b"), reservation_key("c", "a"))
    with pytest.raises(Fenced):
        await disk.open("a", claim=NOBODY_LIVES)
    assert len(await recovered(await disk.open("a", claim=Claim(("b",), frozenset())))) == 1


async def test_a_volume_that_carries_a_live_nodes_log_is_not_had_back() -> None:
    disk = Disk()
    wal, end = await written(disk, "a")
    with pytest.raises(SettingsError, match="WAL of node 0, which lives there"):
        await disk.open("b", claim=Claim(("a",), frozenset({0})))
    with pytest.raises(SettingsError, match="held by another host"):
        await disk.open("b", node_id=5, claim=NOBODY_LIVES)  # nor one that never was its own
    await wal.trim(end)


class Writing:
    """A machine that writes for as long as it is let, whoever has its volume."""

    def __init__(self, wal: BlockWal, listener: Listener, name: str, rng: random.Random) -> None:
        self._wal = wal
        self._listener = listener
        self._name = name
        self._rng = rng
        self._ends: list[tuple[int, bytes]] = []

    def released(self) -> list[bytes]:
        """Return what it was told is durable."""
        position = self._listener.positions[-1] if self._listener.positions else 0
        return [payload for end, payload in self._ends if end <= position]

    async def run(self) -> None:
        """Write until the device refuses."""
        while not self._listener.errors:
            number = len(self._ends)
            payload = b"%s:%d" % (self._name.encode(), number) * self._rng.randrange(1, 200)
            self._ends.append((self._wal.append(1, 1, number, 1, payload), payload))
            await asyncio.sleep(self._rng.uniform(0, 0.002))


@pytest.mark.parametrize("seed", range(25))
def test_whoever_comes_in_whichever_order_nothing_released_is_lost(seed: int) -> None:
    """Machines with one host id and others open and take a volume, in an order of chance, while
    those before them write on and register anew. Whatever anybody was told is durable, the next
    one reads; from then on none of those before is told anything.
    """

    async def world() -> None:
        rng = random.Random(seed)
        disk = Disk(seed, (0.0005, 0.004))
        await disk.format("a")
        machines: list[str] = []
        before: list[Writing] = []
        tasks: list[asyncio.Task[None]] = []
        told: list[bytes] = []
        for epoch in range(1, 8):
            host = rng.choice("aaabc")
            machines.append(f"{host}{epoch}")
            if host == "a" and rng.random() < 0.7:
                known = Claim(("b", "c"), frozenset())
                wal = await disk.open("a", machine=machines[-1], claim=known)
            else:
                others = ("a", "b", "c")
                wal = await disk.take(host, machine=machines[-1], other_hosts=others)
            records = [bytes(record.payload) for record in await recovered(wal)]
            told = [payload for writing in before for payload in writing.released()]
            assert set(told) <= set(records)
            back = rng.choice(machines)
            await MemoryReservation(disk.table, back).register(reservation_key("c", back[0]))
            before.append(Writing(wal, await started(wal, epoch), machines[-1], rng))
            tasks.append(asyncio.create_task(before[-1].run()))
            await asyncio.sleep(rng.uniform(0, 0.03))
            assert told == [p for writing in before[:-1] for p in writing.released()]
        for task in tasks:
            task.cancel()
        assert told

    simulate(world, seed=seed)


def test_what_a_node_claims_follows_from_the_metadata() -> None:
    def known(node_id: int, host_id: str, *, is_fenced: bool = False) -> NodeState:
        return NodeState(
            node_id=node_id,
            epoch=1,
            incarnation="i",
            host="h",
            port=1,
            rack=None,
            host_id=host_id,
            is_fenced=is_fenced,
        )

    nodes = [
        known(0, "a"),
        known(1, "a"),
        known(2, "b", is_fenced=True),
        known(3, "c"),
        known(4, ""),
    ]
    state = MetadataImage(nodes=Map({node.node_id: node for node in nodes}))
    own = NodeIdentity(node_id=0, host="h", port=1, host_id="a")
    assert claim(state, own) == Claim(("b", "c"), frozenset({3, 4}))
    moved = NodeIdentity(node_id=0, host="h", port=1, host_id="new")
    assert claim(state, moved) == Claim(("a", "b", "c"), frozenset({1, 3, 4}))
