"""Further listeners: each client is told addresses that it can reach, of every node."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.network.listeners import Listeners, counted_up
from lakehead.broker.setting_sources import load
from lakehead.broker.supervisor.placement import node_commands
from lakehead.storage.errors import SettingsError


@dataclass
class Known:
    node_id: int
    host: str = "10.0.0.7"
    port: int = 9092
    rack: str | None = "use1-az1"


def listeners(bound: str, told: str, **flags: str) -> Listeners:
    return Listeners(load({"extra.listeners": bound, "extra.advertised.listeners": told, **flags}))


def test_a_client_is_told_addresses_of_the_listener_that_it_came_by() -> None:
    found = listeners(
        "LINK://0.0.0.0:9192, ZONE://0.0.0.0:9292",
        "LINK://lake.example.com:{20000+node.id},ZONE://b{node.id}.{rack}.lake.internal:9292",
    )
    node = Known(104)
    assert found.address("PLAINTEXT", node) == ("10.0.0.7", 9092)
    assert found.address("LINK", node) == ("lake.example.com", 20104)
    assert found.address("ZONE", node) == ("b104.use1-az1.lake.internal", 9292)
    assert found.address("ZONE", Known(3, rack=None)).host == "b3..lake.internal"


@given(st.sets(st.integers(0, 40_000), min_size=2), st.integers(1, 20_000))
def test_no_two_nodes_are_told_at_one_address(nodes: set[int], first: int) -> None:
    """Behind one name, as of a PrivateLink endpoint, the port tells nodes apart."""
    found = listeners("LINK://:9192", f"LINK://one.name:{{{first}+node.id}}")
    assert len({found.address("LINK", Known(node)) for node in nodes}) == len(nodes)


@pytest.mark.parametrize(
    ("bound", "told", "said"),
    [
        ("9192", "", "'9192' is not NAME://host:port"),
        ("LINK://:9192", "", "LINK is in one of them only"),
        ("", "LINK://x:1", "LINK is in one of them only"),
        ("LINK://:9192,LINK://:9193", "LINK://x:1", "named twice"),
        ("PLAINTEXT://:9192", "PLAINTEXT://x:1", "PLAINTEXT is host and port"),
        ("LINK://:9092", "LINK://x:1", "two listeners of a node have one port"),
        ("A://:9192,B://:9192", "A://x:1,B://x:2", "two listeners of a node have one port"),
        ("LINK://:0", "LINK://x:1", "not from 1 to 65535"),
        ("LINK://:9192", "LINK://x:99999", "not from 1 to 65535"),
        ("LINK://:9192", "LINK://:1", "is not NAME://host:port"),
        ("LINK://:9192", "LINK://b{id}:1", "another placeholder"),
        ("LINK://:9192", "LINK://x:{65535+node.id}", "would be at port 65536"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(bound: str, told: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        listeners(bound, told, **{"node.id": "1"})
    assert "\n" not in str(error.value)


def test_nodes_of_a_machine_listen_at_ports_that_are_counted_up() -> None:
    given_flags = {
        "nodes": "2",
        "extra.listeners": "A://0.0.0.0:9192",
        "extra.advertised.listeners": "A://x:{9192+node.id}",
    }
    commands = node_commands(load(given_flags), given_flags, None)
    told = [
        next(one for one in reversed(command.arguments) if one.startswith("--extra.listeners="))
        for command in commands
    ]
    assert told == [
        "--extra.listeners=A://0.0.0.0:9192",
        "--extra.listeners=A://0.0.0.0:9193",
    ]
    assert counted_up("", 3) == ""
