"""What a node refuses to start with: another cluster than it was meant for, an address that leads
nowhere.
"""

from ipaddress import ip_address

from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import ClusterState


def refuse_other_cluster(state: ClusterState, wanted: str, store_uri: str) -> None:
    """Raise SettingsError when a node was told which cluster it is of (`wanted`, its id; empty: it
    was not), and the store at this place has another one, or none.
    """
    if wanted in {"", state.cluster_id}:
        return
    found = f"has cluster {state.cluster_id}" if state.cluster_id else "has no cluster"
    raise SettingsError(
        f"{store_uri} {found}, and cluster.id says {wanted}: give the right store, or another "
        "cluster.id"
    )


def refuse_meta_address(host: str) -> None:
    """Raise SettingsError when `host` is no address that anybody could connect to: "any address of
    this machine" is one to listen on only.
    """
    try:
        is_meta = ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return
    if is_meta:
        raise SettingsError(
            f"advertised.host: clients and other nodes cannot connect to {host}: give the name or "
            "address by which they reach this machine"
        )
