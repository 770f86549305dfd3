"""A table's root is its own: written in one way, and clear of the store, of logs and of others."""

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.configs.table_places import TablePlaces, registries_with_own
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.lake.declaration.paths import allowed_roots, root_path
from lakehead.lake.declaration.roots import TableRoots
from lakehead.lake.declaration.table_declaration import (
    PREFIX,
    dead_letters_uri,
    declared_paths,
    rebuild_uri,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState, TopicState

S3 = "s3://bucket/cluster?region=x"
FOLDER = "file:/data/store"
WALS = {
    0: "",
    1: "block:/disks/wal?reservations=true",
    2: "object:s3://logs/wal",
    3: "block:ebs:a/0",
}


def state(tables: dict[str, str] | None = None, *, is_enabled: bool = True) -> MetadataImage:
    topics = {}
    for number, (name, path) in enumerate((tables or {}).items(), 1):
        configs = {f"{PREFIX}enable": str(is_enabled).lower()}
        if path:
            configs[f"{PREFIX}path"] = path
        topics[name] = TopicState(
            name=name, topic_id=f"{number:032x}", partitions=(), configs=Map(configs)
        )
    nodes = {
        number: NodeState(
            node_id=number, epoch=0, incarnation="i", host="h", port=1, rack=None, wal=wal
        )
        for number, wal in WALS.items()
    }
    return MetadataImage(nodes=Map(nodes), topics=Map(topics))


@pytest.mark.parametrize(
    ("store", "root", "words"),
    [
        (S3, "s3://bucket/cluster", "is the cluster's store"),
        (S3, "s3://bucket/cluster/", "is the cluster's store"),
        (S3, "s3://BUCKET/cluster", "is the cluster's store"),
        (S3, "s3://bucket/cluster?endpoint=http://elsewhere", "is the cluster's store"),
        (S3, "s3://bucket/cluster/data", "lies in the cluster's store"),
        (S3, "s3://bucket/cluster/meta/t", "lies in the cluster's store"),
        (S3, "s3://bucket/cluster/tablesx/t", "lies in the cluster's store"),
        (S3, "s3://bucket/cluster/tables", "lies in the cluster's store"),
        (S3, "s3://logs/wal", "is a write-ahead log"),
        (S3, "s3://logs/wal/1", "lies in a write-ahead log"),
        (S3, "/disks", "holds a write-ahead log"),
        (S3, "/disks/wal", "is a write-ahead log"),
        (S3, "file:///disks//wal/", "is a write-ahead log"),
        (FOLDER, "/data/store", "is the cluster's store"),
        (FOLDER, "/data", "holds the cluster's store"),
        (FOLDER, "file:/data/store/data", "lies in the cluster's store"),
        (FOLDER, "/data/store/tables/t", "lies in the cluster's store"),
        (FOLDER, "/data/tables", "holds the tables of other topics"),
        (FOLDER, "/data/tables/", "holds the tables of other topics"),
    ],
)
def test_a_root_keeps_clear_of_the_store_and_of_logs(store: str, root: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        TableRoots(state(), store).check(root, "orders")


@pytest.mark.parametrize(
    ("store", "root"),
    [
        (S3, "s3://bucket/cluster/tables/orders"),
        (S3, "s3://bucket/cluster/tables/team/orders"),
        (S3, "s3://bucket/clusters/orders"),
        (S3, "s3://bucket/lake"),
        (S3, "s3://logs/walnut"),
        (S3, "/data/orders"),
        (FOLDER, "/data/tables/orders"),
        (FOLDER, "/data/storehouse"),
        (FOLDER, "/disks/wall"),
        ("memory:", "/data/orders"),
    ],
)
def test_a_root_beside_all_that_is_taken(store: str, root: str) -> None:
    TableRoots(state(), store).check(f"{Path.cwd()}/t")  # no log lies in the process's own folder
    TableRoots(state(), store).check(root, "orders")


@pytest.mark.parametrize(
    ("taken", "root"),
    [
        ({"b": ""}, "/data/tables/b"),
        ({"b": ""}, "/data/tables/b/inner"),
        ({"b": ""}, "/data/tables/b__dlq"),
        ({"b": ""}, "/data/tables/b__rebuild/x"),
        ({"b": ""}, "/data/tables/b__rebuild__dlq"),
        ({"a__dlq": ""}, ""),
        ({"a__rebuild": ""}, ""),
        ({"b": "/data/tables/a/b"}, ""),
        ({"b": "/lake/b"}, "/lake"),
        ({"b": "/lake/b/c/d"}, "/lake/b"),
        ({"b": "s3://lake/b?region=x"}, "s3://lake/b?region=y"),
        ({"b": "/lake/x__dlq"}, "/lake/x"),
    ],
)
def test_a_root_is_of_one_topic(taken: dict[str, str], root: str) -> None:
    roots = TableRoots(state(taken), FOLDER)
    with pytest.raises(SettingsError, match=f"of topic {next(iter(taken))}"):
        roots.check(root or "/data/tables/a", "a")
    roots.check(root or "/data/tables/a", next(iter(taken)))  # its own is no other's
    TableRoots(state(taken, is_enabled=False), FOLDER).check(root or "/data/tables/a", "a")


_NAMES = st.sampled_from(["a", "b", "c", "a__dlq", "b__rebuild"])
_PLACES = st.sampled_from(["", "/data/tables/b", "/lake/a", "/lake/a/b", "/lake", "s3://lake/b"])


def refused(roots: TableRoots) -> set[tuple[str, str]]:
    """Return the roots that topics may not have."""
    found = set()
    for topic in ("a", "b", "c", "d"):
        for root in ("/data/tables/a", "/data/tables/b", "/lake/a", "/lake/a/b", "s3://lake/b"):
            try:
                roots.check(root, topic)
            except SettingsError:
                found.add((topic, root))
    return found


@given(st.lists(st.dictionaries(_NAMES, _PLACES), max_size=6))
def test_roots_that_follow_the_topics_are_those_that_are_made_anew(
    steps: list[dict[str, str]],
) -> None:
    first = state()
    roots = TableRoots(first, FOLDER)
    for tables in steps:
        later = replace(state(tables), nodes=first.nodes)
        roots.take_topics(later)
        assert refused(roots) == refused(TableRoots(later, FOLDER))


def test_a_new_topic_is_checked_at_once_beside_many(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"t{number:05}": "" for number in range(2_000)}
    places = TablePlaces(Settings(store=FOLDER))
    before = state(names)
    places.check("x", {f"{PREFIX}enable": "true"}, {}, before)
    topics = before.topics.set("x", state({"x": ""}).topics["x"])
    looked_into: list[str] = []

    def watched(topic: str, configs: Mapping[str, str]) -> dict[str, str]:
        looked_into.append(topic)
        return declared_paths(topic, configs)

    monkeypatch.setattr("lakehead.lake.declaration.roots.declared_paths", watched)
    with pytest.raises(KafkaError):
        places.check("x__dlq", {f"{PREFIX}enable": "true"}, {}, replace(before, topics=topics))
    assert looked_into == ["x"]


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("lake/orders", "begin with /"),
        ("file:lake", "begin with /"),
        ("//host/share", "begin with /"),
        ("file://host/share", "begin with /"),
        ("/", "root of the file system"),
        ("/lake/../data", "empty, . or .."),
        ("/lake/./t", "empty, . or .."),
        ("/lake/t%2e", "has %"),
        ("/lake/t?x", r"has \?"),
        ("/lake/t#x", "has #"),
        ("/lake/t\n", "control character"),
        ("s3://bucket", "names no prefix"),
        ("s3://bucket/", "names no prefix"),
        ("s3:/bucket/t", "names no prefix"),
        ("s3://user@bucket/t", "names no prefix"),
        ("s3://bucket:1/t", "names no prefix"),
        ("s3://bucket/a//t", "empty, . or .."),
        ("s3://bucket/a/../t", "empty, . or .."),
        ("s3://bucket/%63luster", "has %"),
        ("s3://bucket/cluster#t", "has #"),
        ("s3://bucket/clu\tster", "control character"),
        ("s3a://bucket/t", "neither a folder nor s3"),
        ("S3://bucket/t", "neither a folder nor s3"),
        ("FILE:/t", "neither a folder nor s3"),
        ("hdfs://host/t", "neither a folder nor s3"),
    ],
)
def test_a_root_is_written_in_one_way(root: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        root_path(root)


NAMES = st.sampled_from(["a", "b", "a__dlq", "a__rebuild", "tables", "store", "wal", "x"])
ROOTS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


def is_within(one: str, other: str) -> bool:
    return posixpath.commonpath([one, other]) == other


@given(own=ROOTS, other=ROOTS, store=ROOTS)
def test_of_two_tables_that_may_be_none_lies_in_the_other(own: str, other: str, store: str) -> None:
    """Against a reference by the texts alone."""

    def family(uri: str) -> list[str]:
        return [uri, dead_letters_uri(uri), rebuild_uri(uri), dead_letters_uri(rebuild_uri(uri))]

    overlap = any(
        is_within(one, two) or is_within(two, one) for one in family(own) for two in family(other)
    )
    tables = f"{store.removesuffix('/store')}/tables"
    is_clear = not is_within(store, own) and not is_within(tables, own)
    is_clear &= not is_within(own, store) or (is_within(tables, store) and is_within(own, tables))
    roots = TableRoots(state({"other": other}), store)
    try:
        roots.check(own, "own")
    except SettingsError:
        assert overlap or not is_clear
    else:
        assert is_clear
        assert not overlap


def test_a_root_is_free_again_that_a_link_led_to_when_its_topic_came(tmp_path: Path) -> None:
    """Also where the link leads elsewhere when the topic goes."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "first")
    with_table = state({"a": f"{link}/t"})
    roots = TableRoots(with_table, S3, follows_links=True)
    with pytest.raises(SettingsError, match="topic a"):
        roots.check(str(tmp_path / "first/t"), "b")
    link.unlink()
    link.symlink_to(tmp_path / "second")
    roots.take_topics(replace(state(), nodes=with_table.nodes))
    roots.check(str(tmp_path / "first/t"), "b")
    roots.check(str(tmp_path / "second/t"), "b")


def test_links_and_mounts_are_seen_where_jobs_run(tmp_path: Path) -> None:
    store = tmp_path / "cluster"
    (store / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "up").symlink_to(tmp_path)
    (store / "tables" / "b").mkdir(parents=True)
    (tmp_path / "of-b").symlink_to(store / "tables" / "b")
    cluster = state({"b": ""})
    for alias in ("link", "link/data/t", "up/cluster", "up", "of-b", "of-b/inner"):
        root = str(tmp_path / alias)
        with pytest.raises(SettingsError):
            TableRoots(cluster, str(store), follows_links=True).check(root, "a")
    TableRoots(cluster, str(store), follows_links=True).check(str(tmp_path / "link/tables/a"), "a")
    # A log that another machine has is nowhere here, and above it may be anything.
    other = NodeState(
        node_id=1, epoch=0, incarnation="i", host="h", port=1, rack=None, wal=f"block:{tmp_path}/w"
    )
    beside = MetadataImage(nodes=Map({1: other}))
    TableRoots(beside, str(store), follows_links=True).check(str(tmp_path / "lake/a"), "a")
    # A store that is named by its link has its folder as well, for a broker too.
    with pytest.raises(SettingsError, match="the cluster's store"):
        TableRoots(cluster, str(tmp_path / "link")).check(str(store), "a")


@pytest.mark.parametrize(
    ("allowed", "path", "is_allowed"),
    [
        ("", "/data/tables/x", True),
        ("", "/lake/x", False),
        ("", "s3://lake/x", False),
        ("/lake", "/lake/x", True),
        ("/lake", "/lake", True),
        ("/lake", "/lakes/x", False),
        ("/lake, s3://lake", "s3://lake/x", True),
        ("s3://lake/a", "s3://lake/b", False),
        ("s3://lake", "s3://lake/x?region=y", True),
        ("s3://lake", "s3://lake/x?endpoint=http://evil", False),
        ("s3://lake", "s3://lake/x?profile=admin", False),
        ("s3://lake?endpoint=http://own", "s3://lake/x?endpoint=http://own/", True),
        ("s3://lake?endpoint=http://own", "s3://lake/x?endpoint=http://evil", False),
        ("*", "s3://any/x?endpoint=http://evil", True),
    ],
)
def test_a_client_chooses_among_places_that_the_operator_allows(
    allowed: str, path: str, is_allowed: bool
) -> None:
    places = TablePlaces(Settings(store=FOLDER, table_roots=allowed))
    for changes in ({f"{PREFIX}path": path}, {f"{PREFIX}path": path, f"{PREFIX}enable": "true"}):
        if is_allowed:
            places.check("t", changes, {}, state())
        else:
            with pytest.raises(KafkaError, match=r"table\.roots") as refused:
                places.check("t", changes, {}, state())
            assert refused.value.code is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("allowed", "url", "is_allowed"),
    [
        ("", "http://registry:8081", False),
        ("", "http://169.254.169.254/latest", False),
        ("http://registry:8081", "http://registry:8081/", True),
        ("http://registry:8081", "http://REGISTRY:8081/ccompat/v7", True),
        ("http://registry:8081", "http://registry:80811", False),
        ("http://registry:8081", "http://registry:8081@evil", False),
        ("http://registry:8081", "http://user:password@registry:8081", False),
        ("http://registry:8081", "https://registry:8081", False),
        ("http://registry:8081", "http://registry:8081,http://evil", False),
        ("http://registry/a", "http://registry/ab", False),
        ("http://registry/a", "http://registry/a/../b", False),
        ("http://registry/a", "http://registry/a?x=", False),
        ("https://registry", "https://registry:443", True),
        ("*", "http://any", True),
    ],
)
def test_a_client_chooses_among_registries_that_the_operator_allows(
    allowed: str, url: str, is_allowed: bool
) -> None:
    places = TablePlaces(Settings(table_registries=allowed))
    changes = {f"{PREFIX}schema.registry.url": url}
    if is_allowed:
        places.check("t", changes, {}, state())
    else:
        with pytest.raises(KafkaError) as refused:
            places.check("t", changes, {}, state())
        assert refused.value.code is ErrorCode.invalid_config


def test_the_registry_beside_the_nodes_is_allowed() -> None:
    own = registries_with_own(Settings(registry_port=8081, table_registries="https://other"))
    places = TablePlaces(Settings(table_registries=own))
    for url in ("https://other", "http://localhost:8081", "http://127.0.0.1:8081"):
        places.check("t", {f"{PREFIX}schema.registry.url": url}, {}, state())
    assert registries_with_own(Settings(registry_port=-1)) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        Settings(table_roots="lake"),
        Settings(table_roots="s3://"),
        Settings(table_registries="registry"),
    ],
)
def test_a_node_does_not_start_with_a_list_that_names_no_place(wrong: Settings) -> None:
    with pytest.raises(SettingsError, match=r"^table\."):
        TablePlaces(wrong)


def test_many_tables_are_looked_through_at_once() -> None:
    """A change of one topic in a cluster of many is no work for each of them."""
    names = {f"t{number}": f"/lake/{number}" for number in range(5_000)}
    cluster = state(names)
    places = TablePlaces(Settings(store=FOLDER, table_roots="/lake"))
    allowed_roots("/lake")
    for number in range(5_000):
        places.check(
            f"t{number}", {f"{PREFIX}enable": "true"}, cluster.topics[f"t{number}"].configs, cluster
        )
    with pytest.raises(KafkaError, match="of topic t17"):
        places.check("new", {f"{PREFIX}path": "/lake/17"}, {}, cluster)
