"""Listeners by Kafka's settings: each client gets addresses that it can reach, of every node."""

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
    endpoints: str = ""


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
    assert found.address("ZONE", Known(3, rack=None)) == ("b3..lake.internal", 9292)


@given(st.sets(st.integers(0, 40_000), min_size=2), st.integers(1, 20_000))
def test_no_two_nodes_are_told_at_one_address(nodes: set[int], first: int) -> None:
    """Behind one name, as of a PrivateLink endpoint, the port tells nodes apart."""
    found = listeners("LINK://:9192", f"LINK://one.name:{{{first}+node.id}}")
    assert len({found.address("LINK", Known(node)) for node in nodes}) == len(nodes)


@pytest.mark.parametrize(
    ("bound", "told", "said"),
    [
        ("9192", "", "'9192' is not NAME://host:port"),
        (" ://:1", "", "is not NAME://host:port"),
        ("LINK://:9192", "", "LINK is in one of them only"),
        ("", "LINK://x:1", "LINK is in one of them only"),
        ("LINK://:9192,LINK://:9193", "LINK://x:1", "named twice"),
        ("PLAINTEXT://:9192", "PLAINTEXT://x:1", "PLAINTEXT is a listener already"),
        ("LINK://:9092", "LINK://x:1", "PLAINTEXT and LINK have one port"),
        ("A://:9192,B://:9192", "A://x:1,B://x:2", "A and B have one port"),
        ("LINK://:65536", "LINK://x:1", "port 65536 of LINK is above 65535"),
        ("LINK://:9192", "LINK://x:0", "not from 1 to 65535"),
        ("LINK://:9192", "LINK://x:99999", "not from 1 to 65535"),
        ("LINK://:9192", "LINK://:1", "has no host"),
        ("LINK://:9192", "LINK://0.0.0.0:1", "cannot connect to 0.0.0.0"),
        ("LINK://:9192", "LINK://b{id}:1", "is not NAME://host:port"),
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
    assert counted_up("extra.listeners", "", 3) == ""
    text = "A://[::1]:9092,B://x:{5+node.id},C://:0"
    assert counted_up("advertised.listeners", text, 2) == "A://[::1]:9094,B://x:{5+node.id},C://:0"


def test_host_and_port_are_one_listener() -> None:
    found = Listeners(load({"host": "10.0.0.1", "port": "9192", "advertised.host": "b1"}))
    assert [*found.all] == ["PLAINTEXT"]
    assert found.first is found.inter_broker
    assert found.own_addresses({"PLAINTEXT": 9192}, None) == {"PLAINTEXT": ("b1", 9192)}


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_host_of_ipv6_has_brackets_or_none(host: str) -> None:
    assert Listeners(load({"host": host, "port": "9192"})).first.host == "::1"


def test_each_listener_has_its_protocol_and_its_address() -> None:
    found = Listeners(
        load(
            {
                "listeners": "client://0.0.0.0:9092,Internal://:9094,six://[::1]:9096",
                "advertised.listeners": "CLIENT://b{node.id}.x:9092,internal://10.0.0.1:9094",
                "listener.security.protocol.map": "client:SASL_SSL, internal:ssl,SIX:PLAINTEXT",
                "inter.broker.listener.name": "internal",
                "node.id": "7",
            }
        )
    )
    assert {name: one.protocol.value for name, one in found.all.items()} == {
        "CLIENT": "SASL_SSL",
        "INTERNAL": "SSL",
        "SIX": "PLAINTEXT",
    }
    assert found.inter_broker.name == "INTERNAL"
    addresses = found.own_addresses({"CLIENT": 9092, "INTERNAL": 9094, "SIX": 9096}, None)
    assert addresses == {"INTERNAL": ("10.0.0.1", 9094), "CLIENT": ("b7.x", 9092)}
    node = Known(7, endpoints=found.endpoints(addresses))
    assert node.endpoints == "INTERNAL=SSL://10.0.0.1:9094,CLIENT=SASL_SSL://b7.x:9092"
    assert found.address("CLIENT", node) == ("b7.x", 9092)
    assert found.address("SIX", node) is None, "it is not advertised"


def test_a_node_that_registered_one_address_only_has_it_for_all_listeners_it_can() -> None:
    text = {"listeners": "PLAINTEXT://:1,LAN://:2", "advertised.listeners": ""}
    maps = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT"}
    found = Listeners(load({**text, **maps, "advertised.host": "b0"}))
    assert found.address("PLAINTEXT", Known(3)) == ("10.0.0.7", 9092)
    assert found.address("LAN", Known(3)) is None, "its own pattern says nothing of another node"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"listeners": "OTHER://:9092"}, "OTHER has no security protocol"),
        ({"listeners": "A//:9092"}, "is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://:-1"}, "is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://a,b:1"}, "is not NAME://host:port"),
        ({"listeners": "ssl://:1,SSL://:2"}, "SSL is named twice"),
        ({"listeners": "SSL://:1,PLAINTEXT://:1"}, "have one port, 1"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "cannot connect to 0.0.0.0"),
        ({"listeners": "PLAINTEXT://[::]:1"}, "cannot connect to ::"),
        (
            {"listeners": "PLAINTEXT://:1", "advertised.listeners": "SSL://x:1"},
            "SSL is not in listeners",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "SSL is not a listener"),
        ({"security.inter.broker.protocol": "X"}, "X is not a security protocol"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "not both",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:TLS"}, "is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "a:SSL,A:SSL"}, "A is named twice"),
    ],
)
def test_listeners_that_cannot_be_meant_are_refused_in_one_line(
    flags: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        Listeners(load({"advertised.host": "", **flags}))
    assert "\n" not in str(error.value)


def test_an_ipv4_and_an_ipv6_address_may_have_one_port() -> None:
    text = "PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092"
    assert [*Listeners(load({"listeners": text})).all] == ["PLAINTEXT", "SSL"]


def test_a_listener_has_settings_of_its_own() -> None:
    environment = {"LAKEHEAD_LISTENER_NAME_SASL_SSL_SSL_CLIENT_AUTH": "required"}
    flags = {
        "listeners": "PLAINTEXT://:1,SASL_SSL://:2",
        "listener.name.SASL_SSL.max.connections": "9",
    }
    found = Listeners(load(flags, environment)).all["SASL_SSL"]
    assert dict(found.overrides) == {"ssl.client.auth": "required", "max.connections": "9"}
    for rest in ("", ".num.partitions", ".plain.ssl.client.auth", ".ssl.nonsense"):
        with pytest.raises(SettingsError, match="unknown setting"):
            load({f"listener.name.x{rest}": "1"})
    with pytest.raises(SettingsError, match=r"listener\.name\.x\.max\.connections: 'many' is not"):
        load({"listener.name.x.max.connections": "many"})
