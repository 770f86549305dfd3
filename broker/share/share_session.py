"""Share sessions (KIP-932): the node remembers the partitions that a member fetches, so that
requests name only changes.

A session belongs to a member of a group and to its connection. It ends by a request with the final
epoch or with the connection; the records that the member has are free then.

Sessions are bounded by their number, and by `PARTITIONS_MAX` partitions in all of them: clients
decide how many a session has, and need not name partitions that exist.
"""

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.network.connection import Connection
from lakehead.broker.protocol.errors import KafkaError

PARTITIONS_MAX = 250_000
"""Partitions of all sessions, some 250 bytes each."""
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_FIRST_EPOCH = 1
_EPOCH_MAX = 0x7FFFFFFF

Place = tuple[bytes, int]
"""A topic's id (16 bytes) and the index of a partition."""


class ShareSessionKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class ShareSession:
    """The partitions that one member fetches, in the order in which it named them."""

    def __init__(self, key: ShareSessionKey, connection: Connection) -> None:
        self.key = key
        self.connection = connection
        self.epoch = _FIRST_EPOCH
        self.partitions: dict[Place, None] = {}

    def rotated(self, left_out: Container[Place] = ()) -> list[Place]:
        """Return the partitions in the order of this request, without some: in the session's first
        request as they were named, and from one request to the next another one first.
        """
        places = [place for place in self.partitions if place not in left_out]
        turn = (self.epoch - _FIRST_EPOCH) % len(places) if places else 0
        return places[turn:] + places[:turn]


class ShareSessions:
    """Every share session of a node, `most` at the same time. `on_end` is called for those that
    end.
    """

    def __init__(self, most: int, on_end: Callable[[ShareSessionKey], None]) -> None:
        self._most = most
        self._on_end = on_end
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        self._partitions = 0
        """Of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def has_group(self, group_id: str) -> bool:
        """Return true if a member of the group has a session."""
        return any(key.group_id == group_id for key in self._sessions)

    def open(self, key: ShareSessionKey, connection: Connection) -> ShareSession:
        """Begin a session; one that the member had is forgotten, and it keeps its records. Raises
        SHARE_SESSION_LIMIT_REACHED.
        """
        self._forget(key)
        if len(self._sessions) >= self._most:
            raise KafkaError(ErrorCode.share_session_limit_reached)
        session = self._sessions[key] = ShareSession(key, connection)
        connection.when_lost[session] = lambda: self._end(session)
        return session

    def update(
        self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]
    ) -> None:
        """Have a session take over changes. Raises SHARE_SESSION_LIMIT_REACHED where all sessions
        would have too many partitions: this one has ended then.
        """
        partitions = session.partitions
        self._partitions -= len(partitions)
        partitions.update(dict.fromkeys(added))
        for place in forgotten:
            partitions.pop(place, None)
        self._partitions += len(partitions)
        if self._partitions > PARTITIONS_MAX:
            self._end(session)
            raise KafkaError(ErrorCode.share_session_limit_reached)

    def next(self, key: ShareSessionKey, epoch: int) -> ShareSession:
        """Return the session of a request with this epoch. Raises SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.find(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_share_session_epoch)
        session.epoch = _FIRST_EPOCH if epoch == _EPOCH_MAX else epoch + 1
        return session

    def find(self, key: ShareSessionKey) -> ShareSession:
        """Return a session. Raises SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.share_session_not_found)
        return session

    def close(self, key: ShareSessionKey) -> None:
        """End a session. Harmless where there is none."""
        session = self._sessions.get(key)
        if session is not None:
            self._end(session)

    def _end(self, session: ShareSession) -> None:
        if self._sessions.get(session.key) is session:
            self._forget(session.key)
            self._on_end(session.key)

    def _forget(self, key: ShareSessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.connection.when_lost.pop(session, None)
