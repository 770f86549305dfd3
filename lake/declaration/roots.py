"""Table roots: the folders that tables of a cluster lie in, and what each must keep clear of.

VACUUM and a rebuild delete below a table's root, so a root is never what something else lies in:
the cluster's store, a write-ahead log, the folder of all default roots, another table's root. With
each root go those of its dead letters and of its rebuild, which have names of their own beside it.
"""

import os
import pathlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from lakehead.lake.declaration.paths import (
    AllowedRoot,
    Path,
    as_text,
    folder_path,
    lies_in,
    place_path,
    reached_by,
    root_path,
)
from lakehead.lake.declaration.table_declaration import (
    PREFIX,
    dead_letters_uri,
    declared_paths,
    default_table_uri,
    rebuild_uri,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState, TopicState

_STORE = "the cluster's store"
_TABLE = "the table"
_SORTED_AT_ONCE = 100
"""Paths that are inserted one by one are fewer."""
_OTHER = "name that topic and no table, or another place"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Something that lies somewhere. `topics`: those whose table it is."""

    text: str
    topics: frozenset[str] = frozenset()


class TableRoots:
    """The places of a cluster that tables keep clear of, as of one state. `store` and `wals` are
    URIs; a node's log that the metadata do not name can be among them.

    With `follows_links`, table roots are looked up in this machine's file system too: one that
    is reached through a symbolic link, a mount, or a name in other letters is still one folder.
    A broker does not: a root is what a client has written, and a file system may hang.
    """

    def __init__(
        self,
        state: MetadataImage,
        store: str,
        *,
        wals: Sequence[str] = (),
        follows_links: bool = False,
    ) -> None:
        self._store = store
        self._follows_links = follows_links
        self.default = _parent(place_path(default_table_uri(store, "topic")))
        """The folder of the tables that name no place."""
        self._fixed = list(self._places(state.nodes.values(), wals))
        self._topics: Mapping[str, TopicState] = {}
        self._taken: dict[Path, _Taken] = {}
        self._entered: dict[str, list[Path]] = {}
        """The paths of each topic: a symbolic link may lead elsewhere when it leaves."""
        self._paths: list[Path] = []
        self.take_topics(state)

    def _places(
        self, nodes: Iterable[NodeState], wals: Sequence[str]
    ) -> Iterator[tuple[Path, str]]:
        for uri in dict.fromkeys((*wals, *(node.wal for node in nodes if node.wal))):
            for path in self._of_place(uri):
                yield path, "a write-ahead log"
        for path in self._of_place(self._store):
            yield path, _STORE

    def _of_place(self, uri: str) -> Iterator[Path]:
        path = place_path(uri)
        if path is not None:
            yield path
            yield from _real(path)

    def _others(self, path: Path) -> Iterator[Path]:
        return _real(path) if self._follows_links else iter(())

    def take_topics(self, state: MetadataImage) -> None:
        """Take the topics of another state, whose nodes are the same. Only those that differ are
        looked into: a cluster may have thousands, and each new one is checked.
        """
        before, now = self._topics, state.topics
        self._topics = now
        changed = [
            (known, topic)
            for name, topic in now.items()
            if (known := before.get(name)) is not topic
            and (known is None or known.configs != topic.configs)
        ]
        if len(before) + sum(known is None for known, _ in changed) != len(now):
            for name, known in before.items():
                if name not in now:
                    self._leave(known)
        for known, _ in changed:
            if known is not None:
                self._leave(known)
        entered = [path for _, topic in changed for path in self._enter(topic)]
        if len(entered) > _SORTED_AT_ONCE:
            self._paths = sorted(self._taken)
        else:
            for path in entered:
                insort(self._paths, path)

    def _enter(self, topic: TopicState) -> Iterator[Path]:
        """Yield the paths that were free."""
        entered = self._entered[topic.name] = []
        for path, text in self._roots_of(topic):
            entered.append(path)
            known = self._taken.get(path)
            topics = frozenset() if known is None else known.topics
            self._taken[path] = _Taken(text=text, topics=topics | {topic.name})
            if known is None:
                yield path

    def _leave(self, topic: TopicState) -> None:
        for path in self._entered.pop(topic.name, ()):
            known = self._taken.get(path)
            if known is None:  # two tables of the topic had it
                continue
            if topics := known.topics - {topic.name}:
                self._taken[path] = replace(known, topics=topics)
            else:
                del self._taken[path]
                del self._paths[bisect_left(self._paths, path)]

    def _roots_of(self, topic: TopicState) -> Iterator[tuple[Path, str]]:
        if topic.declares_table:
            for name, uri in declared_paths(topic.name, topic.configs).items():
                yield from self._family(uri or default_table_uri(self._store, name))

    def _family(self, uri: str) -> Iterator[tuple[Path, str]]:
        """The root at a URI and those that go with it, under every path they have."""
        beside = rebuild_uri(uri)
        for one, text in (
            (uri, _TABLE),
            (dead_letters_uri(uri), "the dead letters"),
            (beside, "the table that a rebuild makes"),
            (dead_letters_uri(beside), "the dead letters of a rebuild"),
        ):
            try:
                path = root_path(one)
            except SettingsError:
                continue  # of a declaration that is refused itself
            yield path, text
            for other in self._others(path):
                yield other, text

    def check(self, uri: str, topic: str = "") -> None:
        """Raise SettingsError unless a table of `topic` (without: of none that declares it) may lie
        there.
        """
        path = root_path(uri)
        for own in (path, *self._others(path)):
            self._check_fixed(uri, own)
        if self._follows_links and path[0] == "file":
            self._check_folders(uri, path)
        for own, text in self._family(uri):
            if (other := self._overlapping(own, topic)) is not None:
                raise SettingsError(_collision(uri, text, other, topic))

    def check_apart(self, uris: Sequence[str]) -> None:
        """Raise SettingsError unless the tables of one topic, at these roots, keep clear of one
        another.
        """
        for one, other in combinations(uris, 2):
            for path, text in self._family(one):
                for second, others in self._family(other):
                    if lies_in(path, second) or lies_in(second, path):
                        raise SettingsError(
                            f"{text} of {one} overlaps {others} of {other}: the tables of a topic "
                            f"need folders of their own, so set another {PREFIX}TABLE.path"
                        )

    def _check_fixed(self, uri: str, path: Path) -> None:
        default = self.default
        own = "" if default is None else f", such as {as_text((*default, 'NAME'))}"
        for place, text in self._fixed:
            if lies_in(place, path):
                verb = "is" if place == path else "holds"
            elif lies_in(path, place):
                if (
                    text == _STORE
                    and default is not None
                    and (
                        lies_in(path, default)
                        and len(path) > len(default)
                        and lies_in(default, place)
                    )
                ):
                    continue
                verb = "lies in"
            else:
                continue
            raise SettingsError(
                f"{uri} {verb} {text} ({as_text(place)}): a table needs a folder of its own{own}"
            )
        if default is not None and lies_in(default, path):
            raise SettingsError(
                f"{uri} holds the tables of other topics: a table needs a folder of its own{own}"
            )

    def _check_folders(self, uri: str, path: Path) -> None:
        """The same by the folders themselves, which a mount gives a second name."""
        above = _folders(path)
        tables = None if self.default is None else _folder(self.default)
        is_among_tables = tables in above[1:]
        if tables is None:  # it is not made yet: the names alone decide
            is_among_tables = self.default is not None and lies_in(path, self.default)
        for place, text in self._fixed:
            if place[0] != "file" or (own := _folder(place)) is None:
                continue
            if own in above and not (is_among_tables and text == _STORE):
                raise SettingsError(f"{uri} is or lies in {text} ({as_text(place)})")
            if above[0] is not None and above[0] in _folders(place):
                raise SettingsError(f"{uri} holds {text} ({as_text(place)})")

    def _overlapping(self, path: Path, topic: str) -> _Taken | None:
        """Return the root that another topic has at the path, above it, or within it."""
        for length in range(2, len(path) + 1):
            if (taken := self._taken.get(path[:length])) is not None and taken.topics - {topic}:
                return taken
        first = bisect_right(self._paths, path)
        last = bisect_left(self._paths, (*path[:-1], f"{path[-1]}\0"), first)
        for inner in self._paths[first:last]:
            if (taken := self._taken[inner]).topics - {topic}:
                return taken
        return None

    def check_allowed(self, uri: str, allowed: Sequence[AllowedRoot] | None) -> None:
        """Raise SettingsError unless a root lies in the folder of the default roots or in one of
        those that an operator allows, and is reached as that is; None: anywhere.
        """
        if allowed is None:
            return
        own = () if self.default is None else (AllowedRoot(self.default, reached_by(self._store)),)
        path, reached = root_path(uri), reached_by(uri)
        places = [place for place in (*allowed, *own) if lies_in(path, place.path)]
        if not places:
            known = ", ".join(as_text(place.path) for place in (*allowed, *own))
            raise SettingsError(
                f"{uri} is outside the places that tables are allowed in ({known}): choose "
                "one of them, or have the operator add it to the setting table.roots of the nodes"
            )
        if not any(reached <= place.reaches for place in places):
            raise SettingsError(
                f"{uri} has an endpoint or a profile that its place is not allowed with: leave it "
                "out, or have the operator add it to the setting table.roots of the nodes"
            )


def _real(path: Path) -> Iterator[Path]:
    """The path without symbolic links, if that is another. Reads the file system."""
    if path[0] == "file" and (other := folder_path(os.path.realpath(as_text(path)))) != path:
        yield other


def _folder(path: Path) -> tuple[int, int] | None:
    """Return the file system's id of a folder; None if it is not there."""
    try:
        stat = pathlib.Path(as_text(path)).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _folders(path: Path) -> list[tuple[int, int] | None]:
    """Return the file system's ids of a folder and those above it, inmost first; the root of the
    file system is left out.
    """
    return [_folder(path[:length]) for length in range(len(path), 1, -1)]


def _parent(path: Path | None) -> Path | None:
    return None if path is None else path[:-1]


def _collision(uri: str, text: str, other: _Taken, topic: str) -> str:
    others = ", ".join(sorted(other.topics - {topic})[:3])
    own = uri if text == _TABLE else f"{uri} ({text} of it)"
    found = f"{own} overlaps {other.text} of topic {others}"
    if not topic and other.text == _TABLE:
        return f"{own} is, holds or lies in the table that topic {others} declares: {_OTHER}"
    if not topic:
        return f"{found}: {_OTHER}"
    return f"{found}: tables need folders of their own, so set another {PREFIX}path"
