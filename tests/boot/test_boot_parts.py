"""What can be said of `make boot-test` without booting anything."""

import ipaddress

import pytest

from tests.boot.guest import host_address
from tests.boot.machine import MachineFailed
from tests.boot.metadata import InstanceFacts, service_of

FACTS = InstanceFacts(
    instance_id="i-0a",
    region="us-east-1",
    zone="us-east-1a",
    address="10.42.7.137",
    subnet="10.42.0.0/20",
    mac="02:00:00:23:d0:8b",
    user_data="#cloud-config\n",
    tags={"lakehead:slot": "a-0", "lakehead:cluster": "lakehead"},
    access_key="key",
    secret_key="secret",
)


def test_whoever_goes_through_the_metadata_finds_everything_and_nothing_without_a_token() -> None:
    imds = service_of(FACTS)
    assert imds.answer("GET", "/latest/user-data", "", "")[0] == 401
    _, token = imds.answer("PUT", "/latest/api/token", "", "60")
    leaves, folders = {}, ["meta-data/", "dynamic/"]
    while folders:
        folder = folders.pop()
        status, listed = imds.answer("GET", f"/latest/{folder}", token, "")
        assert status == 200
        for name in listed.splitlines():
            if name.endswith("/"):
                folders.append(folder + name)
            else:
                leaves[folder + name] = imds.answer("GET", f"/latest/{folder}{name}", token, "")
    assert leaves["meta-data/tags/instance/lakehead:slot"] == (200, "a-0")
    assert leaves[f"meta-data/network/interfaces/macs/{FACTS.mac}/local-ipv4s"][1] == FACTS.address
    assert {status for status, _ in leaves.values()} == {200}
    told = {path for path in imds.texts if path.startswith(("meta-data/", "dynamic/"))}
    assert set(leaves) == {path for path in told if path.rstrip("/") + "/" not in told}


def test_a_guest_is_alone_in_its_network_with_a_way_out() -> None:
    for last in range(1, 255):
        address = f"10.42.7.{last}"
        host = host_address(address, ["10.42.9.1"])
        assert host != address
        block = ipaddress.ip_network("10.42.7.0/24")
        assert ipaddress.ip_address(host) in block


def test_two_guests_that_are_neighbours_are_refused() -> None:
    with pytest.raises(MachineFailed):
        host_address("10.42.7.9", ["10.42.7.10"])
