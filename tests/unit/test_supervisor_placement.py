"""What the nodes of a machine are told: each its id, ports and slice, and what the user said."""

from pathlib import Path

import pytest

from lakehead.broker.setting_sources import load
from lakehead.broker.supervisor.placement import NodeCommand, node_commands
from lakehead.broker.supervisor.supervisor import FIRST_S, LONGEST_S, SERVED_WELL_S, BackOff
from lakehead.storage.errors import SettingsError


def commands(**flags: str) -> list[dict[str, str]]:
    """The flags of each node, by name."""
    named = {name.replace("_", "."): value for name, value in flags.items()}
    return [arguments(one) for one in node_commands(load(named), named, None)]


def arguments(command: NodeCommand) -> dict[str, str]:
    assert command.arguments[0] == "start"
    pairs = (argument.removeprefix("--").partition("=") for argument in command.arguments[1:])
    return {name: value for name, _, value in pairs}


def refused(**flags: str) -> str:
    with pytest.raises(SettingsError) as error:
        commands(**flags)
    return str(error.value)


def test_ids_and_ports_are_counted_up() -> None:
    nodes = commands(nodes="3", node_id="7", port="9000", metrics_port="9400", advertised_port="80")
    assert [node["node.id"] for node in nodes] == ["7", "8", "9"]
    assert [node["port"] for node in nodes] == ["9000", "9001", "9002"]
    assert [node["metrics.port"] for node in nodes] == ["9400", "9401", "9402"]
    assert [node["advertised.port"] for node in nodes] == ["80", "81", "82"]


def test_no_node_is_a_supervisor() -> None:
    """LAKEHEAD_NODES and the settings file reach the nodes too: the flag goes before them."""
    assert [node["nodes"] for node in commands(nodes="2")] == ["1", "1"]


def test_free_ports_stay_free_and_no_page_stays_none() -> None:
    nodes = commands(nodes="2", port="0")
    assert [(node["port"], node["metrics.port"]) for node in nodes] == [("0", "-1")] * 2


def test_the_users_flags_reach_every_node_and_other_settings_are_left_to_their_source() -> None:
    nodes = commands(nodes="2", log_retention_ms="-1", cache_size="64m")
    assert [(node["log.retention.ms"], node["cache.size"]) for node in nodes] == [("-1", "64m")] * 2
    assert "upload.size" not in nodes[0]
    with_file = node_commands(load({"nodes": "2"}), {"nodes": "2"}, "/etc/lakehead.toml")
    assert arguments(with_file[1])["config"] == "/etc/lakehead.toml"


def test_zero_nodes_are_one_for_each_core() -> None:
    assert len(commands(nodes="0")) >= 1


def test_a_block_wal_has_a_slice_for_each_node_and_their_sizes_together(tmp_path: Path) -> None:
    nodes = commands(nodes="3", data=str(tmp_path), wal_size="64m")
    assert {node["wal"] for node in nodes} == {f"block:{tmp_path}/wal?slices=3&size={3 * 64 << 20}"}


def test_what_the_address_of_the_wal_says_is_kept(tmp_path: Path) -> None:
    uri = f"block:{tmp_path}/wal?slices=8&size=1g&grow=yes"
    assert {node["wal"] for node in commands(nodes="2", wal=uri)} == {uri}
    assert {node["wal"] for node in commands(nodes="2", wal="object:")} == {"object:"}


def test_a_wal_made_for_fewer_nodes_grows_and_one_made_for_more_is_left(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    with wal.open("wb") as file:
        file.truncate(64 << 20)
    assert "grow=yes" in commands(nodes="2", data=str(tmp_path), wal_size="64m")[0]["wal"]
    with wal.open("wb") as file:
        file.truncate(256 << 20)
    assert "grow" not in commands(nodes="2", data=str(tmp_path), wal_size="64m")[0]["wal"]


def test_what_several_nodes_cannot_share_is_refused() -> None:
    assert "65536" in refused(nodes="3", port="65534")
    assert "9093" in refused(nodes="3", port="9092", metrics_port="9093")
    assert "advertised.port" in refused(nodes="3", advertised_port="65535")
    assert "memory:" in refused(nodes="3", store="memory:")


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_good_life() -> None:
    pauses = BackOff()
    seen = [pauses.after(0.0) for _ in range(10)]
    assert seen[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert seen[-1] == LONGEST_S
    assert pauses.after(SERVED_WELL_S - 1) == LONGEST_S
    assert pauses.after(SERVED_WELL_S) == FIRST_S
