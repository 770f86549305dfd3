"""New connections wait for their turn (KIP-612), and where clients have all places, nodes still
have theirs.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from bench.process import free_port
from lakehead.broker.network.connection_quotas import UNDECIDED_MAX
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from tests.support.sasl_client import SaslClient
from tests.support.waiting import wait_until
from tests.support.watched_node import WatchedNode
from tests.support.wire import API_VERSIONS, Wire, frame, header

LIMIT_S = 60.0
RATE = "max.connection.creation.rate"
TWO: dict[str, object] = {
    "listeners": "CLIENTS://127.0.0.1:0,INTERNAL://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}
WINDOW: dict[str, object] = {"quota.window.num": 2, "quota.window.size.seconds": 1}
"""A rate is measured over one second at the start."""


def port_of(node: WatchedNode, listener: str) -> int:
    return node.node.services.addresses[listener].port


def is_served(wire: Wire) -> bool:
    """Return true if a request gets its response, false if the connection is closed."""
    try:
        return wire.ask(header(API_VERSIONS, 0)) is not None
    except ConnectionError:
        return False


@contextmanager
def connected(port: int, count: int) -> Iterator[list[float]]:
    """Make connections at once; the seconds until each is served."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(count)]
        began, seconds = time.monotonic(), []
        for wire in wires:
            assert is_served(wire)
            seconds.append(time.monotonic() - began)
        yield seconds


def test_connections_beyond_the_rate_are_accepted_later_and_none_is_closed(tmp_path: Path) -> None:
    with (
        WatchedNode(tmp_path, {RATE: 5, **WINDOW}) as node,
        connected(node.port, 9) as seconds,
    ):
        # The sixth makes (6 - 5) / 5 x 1 s, and each one more waits as well.
        assert seconds[8] >= 0.6
        assert node.node.server.refused_total == 0
        counts = node.node.quotas.throttles
        assert counts.requests_total[RATE] >= 3
        assert counts.levels_total["broker"] >= 1


def test_a_listener_that_waits_holds_up_no_other_and_nodes_have_a_rate_of_their_own(
    tmp_path: Path,
) -> None:
    settings = TWO | WINDOW | {RATE: 1, "listener.name.internal." + RATE: 1000}
    with (
        WatchedNode(tmp_path, settings) as node,
        connected(port_of(node, "CLIENTS"), 2),
        Wire(port_of(node, "CLIENTS")) as waiting,
    ):
        waiting.send(frame(header(API_VERSIONS, 0)))
        with connected(port_of(node, "INTERNAL"), 20):
            levels = node.node.quotas.throttles.levels_total
            assert levels["listener"] == 0
        assert waiting.receive() is not None
        assert levels["broker"] >= 2


def test_kafka_configs_set_the_rate_of_a_listener_while_the_node_runs(tmp_path: Path) -> None:
    name = "listener.name.clients." + RATE
    with WatchedNode(tmp_path, TWO | WINDOW) as node:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port_of(node, 'CLIENTS')}"})

        def alter(value: str) -> None:
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)

        with pytest.raises(Exception, match="at least 1"):
            alter("0")
        alter("2")
        with connected(port_of(node, "CLIENTS"), 4) as seconds:
            assert seconds[3] >= 0.4
        alter("2147483647")
        throttled = node.node.quotas.throttles.levels_total["listener"]
        assert throttled >= 1
        with connected(port_of(node, "CLIENTS"), 40):
            assert node.node.quotas.throttles.levels_total["listener"] == throttled


def after_a_tick(node: WatchedNode) -> None:
    """Wait until the server has looked at its connections once more."""
    before = node.node.server.now
    assert wait_until(lambda: node.node.server.now > before, LIMIT_S)


def without_connections(node: WatchedNode) -> bool:
    """Wait for the end of the connection by which a node checks its own address at its start."""
    return wait_until(lambda: not node.node.server.connections, LIMIT_S)


def test_the_connection_of_clients_that_was_idle_for_longest_makes_room_for_a_node(
    tmp_path: Path,
) -> None:
    with (
        WatchedNode(tmp_path, TWO | {"max.connections": 3}) as node,
        ExitStack() as stack,
    ):
        assert without_connections(node)
        clients = []
        for _ in range(3):
            clients.append(stack.enter_context(Wire(port_of(node, "CLIENTS"))))
            assert is_served(clients[-1])
            after_a_tick(node)
        assert is_served(clients[0])  # so the second is idle for longest
        beyond = stack.enter_context(Wire(port_of(node, "CLIENTS")))
        assert not is_served(beyond)
        from_node = stack.enter_context(Wire(port_of(node, "INTERNAL")))
        assert is_served(from_node)
        assert [is_served(one) for one in clients] == [True, False, True]
        more = [stack.enter_context(Wire(port_of(node, "INTERNAL"))) for _ in range(4)]
        assert all(is_served(one) for one in more)
        assert not any(is_served(one) for one in clients)
        assert is_served(from_node)
        assert wait_until(lambda: len(node.node.server.connections) == 5, LIMIT_S)


def test_a_lower_limit_closes_connections_of_clients_and_none_of_nodes(tmp_path: Path) -> None:
    with WatchedNode(tmp_path, TWO) as node, ExitStack() as stack:
        nodes = [stack.enter_context(Wire(port_of(node, "INTERNAL"))) for _ in range(2)]
        clients = [stack.enter_context(Wire(port_of(node, "CLIENTS"))) for _ in range(8)]
        assert all(is_served(one) for one in [*nodes, *clients])
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port_of(node, 'INTERNAL')}"})
        entry = ConfigEntry("max.connections", "5", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
        assert wait_until(lambda: len(node.node.server.connections) <= 5, LIMIT_S)
        assert all(is_served(one) for one in nodes)


def settings(folder: Path, node_id: int, **more: object) -> dict[str, object]:
    return {
        "store": f"file:{folder / 'store'}",
        "wal": f"block:{folder / f'wal-{node_id}'}",
        "node.id": node_id,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "bootstrap.admin": "admin",
        "bootstrap.admin.password": "s3cret",
        "max.connections": 2,
        **more,
    }


def certificates(folder: Path) -> dict[str, object]:
    authority = DevelopmentCa(folder / "ca", utc(SystemClock().now_ms()))
    authority.issue("node", hosts=("localhost", "127.0.0.1"))
    return {
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.truststore.location": str(authority.certificate_path),
    }


def hear_each_other(first: WatchedNode, second: WatchedNode) -> bool:
    return all(
        wait_until(lambda one=one: set(one.node.lifecycle.ready()) == {0, 1}, LIMIT_S)  # type: ignore[misc]
        for one in (first, second)
    )


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_node_joins_by_its_listener_although_clients_have_all_places(
    tmp_path: Path, protocol: str
) -> None:
    given = TWO | {"listener.security.protocol.map": f"CLIENTS:PLAINTEXT,INTERNAL:{protocol}"}
    given |= {"listeners": "CLIENTS://127.0.0.1:0,INTERNAL://localhost:0"}
    if "SSL" in protocol:
        given |= certificates(tmp_path)
    first, second = (WatchedNode(tmp_path, settings(tmp_path, n, **given)) for n in (0, 1))
    with ExitStack() as stack:
        stack.enter_context(first)
        assert without_connections(first)
        clients = [stack.enter_context(Wire(port_of(first, "CLIENTS"))) for _ in range(2)]
        assert all(is_served(one) for one in clients)
        assert not is_served(stack.enter_context(Wire(port_of(first, "CLIENTS"))))
        stack.enter_context(second)
        assert hear_each_other(first, second)
        assert not all(is_served(one) for one in clients)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_node_has_a_place_on_a_listener_with_sasl_that_it_shares_with_clients(
    tmp_path: Path, protocol: str
) -> None:
    given = certificates(tmp_path) if "SSL" in protocol else {}
    first, second = (
        WatchedNode(
            tmp_path,
            settings(tmp_path, n, listeners=f"{protocol}://localhost:{free_port()}", **given),
        )
        for n in (0, 1)
    )
    with ExitStack() as stack:
        stack.enter_context(first)
        assert without_connections(first)
        for _ in range(2):
            stack.enter_context(Wire(first.port))
        assert wait_until(lambda: len(first.node.server.connections) == 2, LIMIT_S)
        for _ in range(2 * UNDECIDED_MAX):
            stack.enter_context(Wire(first.port))
        stack.enter_context(second)
        assert hear_each_other(first, second)


def test_a_client_without_a_place_is_closed_at_its_first_request_after_authentication(
    tmp_path: Path,
) -> None:
    listeners = f"SASL_PLAINTEXT://localhost:{free_port()}"
    given: dict[str, Any] = {
        "listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_ann="ann-secret";'
        ),
    }
    with WatchedNode(tmp_path, settings(tmp_path, 0) | given) as node, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(SaslClient(node.port)).versions()
        beyond = stack.enter_context(SaslClient(node.port))
        assert int(beyond.plain("ann", "ann-secret").error_code) == 0
        with pytest.raises(EOFError):
            beyond.metadata()
        silent = stack.enter_context(SaslClient(node.port))
        silent.versions()
        assert silent.is_closed()
        assert node.node.server.refused_total == 2


def test_a_connection_that_never_authenticates_is_closed_however_busy_it_is(tmp_path: Path) -> None:
    given: dict[str, object] = {
        "listeners": f"SASL_PLAINTEXT://localhost:{free_port()}",
        "max.connections": 10,
        "connections.max.idle.ms": 1500,
    }
    with (
        WatchedNode(tmp_path, settings(tmp_path, 0) | given) as node,
        SaslClient(node.port) as busy,
        pytest.raises(EOFError),
    ):
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            busy.versions()
