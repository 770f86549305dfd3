"""Fetch sessions (KIP-227): the server remembers what a consumer fetches, so that requests name
only changes.

The cache is bounded: when it is full, the session that was used longest ago makes room if it has
been idle for `EVICTION_S`, else the client goes on without a session, as with Kafka. It is full
with its number of sessions, and with `PARTITIONS_MAX` partitions in all of them: clients decide how
many a session has, and need not name partitions that exist.
"""

import random
from collections import OrderedDict

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.fetch import FetchPartition, FetchRequest, PartitionResult
from lakehead.broker.protocol.produce import TopicKey
from lakehead.storage.clock import Clock

EVICTION_S = 120.0
PARTITIONS_MAX = 250_000
"""Partitions of all sessions, some 400 bytes each."""
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 0x7FFFFFFF
NO_SESSION = 0


class Wanted:
    """One partition that a client fetches, and the values that it got last."""

    __slots__ = ("key", "sent_high_watermark", "sent_log_start", "want")

    def __init__(self, key: TopicKey, want: FetchPartition) -> None:
        self.key = key
        self.want = want
        self.sent_high_watermark = -1
        self.sent_log_start = -1

    def is_news(self, result: PartitionResult) -> bool:
        """Return true if an incremental response has to mention the partition."""
        return bool(
            result.records
            or result.error
            or result.diverging is not None
            or result.read_replica >= 0
            or result.high_watermark != self.sent_high_watermark
            or result.log_start_offset != self.sent_log_start
        )


class FetchSession:
    """The partitions that one consumer fetches, in the order in which they are served."""

    def __init__(self, session_id: int, *, by_id: bool, used_at: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.used_at = used_at
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[tuple[TopicKey, int], Wanted] = {}

    def update(self, request: FetchRequest) -> None:
        """Take over what a request adds, changes and forgets, in this order, as Kafka does."""
        for key, wants in request.topics:
            for want in wants:
                wanted = self.partitions.get((key, want.partition))
                if wanted is None:
                    self.partitions[key, want.partition] = Wanted(key, want)
                else:
                    wanted.want = want
        for key, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((key, index), None)

    def sent(self, wanted: Wanted, result: PartitionResult) -> None:
        """Record the values that the client got; a partition that gave records goes to the end."""
        wanted.sent_high_watermark = result.high_watermark
        wanted.sent_log_start = result.log_start_offset
        if result.error:
            wanted.sent_high_watermark = -1  # to be mentioned again once it is well
        if result.records:
            place = (wanted.key, wanted.want.partition)
            if self.partitions.pop(place, None) is not None:
                self.partitions[place] = wanted


class FetchPlan:
    """The partitions to serve for one request, and its session, if any."""

    __slots__ = ("incremental", "partitions", "session")

    def __init__(
        self, partitions: list[Wanted], session: FetchSession | None, *, incremental: bool
    ) -> None:
        self.partitions = partitions
        self.session = session
        self.incremental = incremental


class FetchSessions:
    """Every session of a node."""

    def __init__(self, slots: int, clock: Clock, rng: random.Random) -> None:
        self._slots = slots
        self._clock = clock
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0
        """Of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, *, by_id: bool) -> FetchPlan:
        """Return what to serve.

        Raises KafkaError for the whole response: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if request.session_epoch in {FINAL_EPOCH, INITIAL_EPOCH}:
            ended = self._sessions.get(request.session_id)
            if ended is not None:
                self._end(ended)
            wanted = _named(request)
            session = None
            if request.session_epoch == INITIAL_EPOCH:
                session = self._create(wanted, by_id)
            return FetchPlan(wanted, session, incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        before = len(session.partitions)
        session.update(request)
        self._partitions += len(session.partitions) - before
        if not session.partitions:
            # As in Kafka, what the request names and forgets at once is served outside a session.
            self._end(session)
            return FetchPlan(_named(request), None, incremental=False)
        if not self._has_room(0):
            self._end(session)  # its client names all of its partitions then, and gets no session
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        return FetchPlan(list(session.partitions.values()), session, incremental=True)

    def drop(self, session: FetchSession) -> None:
        """Forget a session of which its client does not get to know."""
        if self._sessions.get(session.session_id) is session:
            self._end(session)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self._partitions -= len(session.partitions)

    def _has_room(self, partitions: int) -> bool:
        """Return true if `partitions` more fit into the sessions, after idle ones have ended."""
        idle_since = self._clock.monotonic() - EVICTION_S
        while self._partitions + partitions > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or oldest.used_at > idle_since:
                return False
            self._end(oldest)
        return True

    def _create(self, wanted: list[Wanted], by_id: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_at < EVICTION_S:
                return None
            self._end(oldest)
        if not self._has_room(len(wanted)):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.getrandbits(31)
        session = FetchSession(session_id, by_id=by_id, used_at=now)
        session.partitions = {(item.key, item.want.partition): item for item in wanted}
        self._sessions[session_id] = session
        self._partitions += len(wanted)
        return session


def _named(request: FetchRequest) -> list[Wanted]:
    """Return the partitions that a request names, each once, by its last mention."""
    named = {(key, want.partition): want for key, wants in request.topics for want in wants}
    return [Wanted(key, want) for (key, _), want in named.items()]
