"""The shards of a coordinator on one node: the partitions of its internal topic that are led here.

A key (a group, a transactional id) belongs to the partition that it hashes to, and is coordinated
by the node that leads that partition: its shard is loaded when the partition is opened here, and
let go when it is handed over; requests that wait get NOT_COORDINATOR then, so that their clients
look for the new coordinator. All that was stored here is in the partition's log by then. The topic
is made when a client first looks for a coordinator.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.load_turns import LoadTurns
from lakehead.broker.coordinator.log import CoordinatorLog, LogPartition
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope

_READ_AGAIN_S, _READ_AGAIN_MAX_S = 0.5, 5.0
"""The first and the longest pause before a log that could not be read is read again."""
_LOAD_WAIT_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class CoordinatorTopic(Protocol):
    """The part of a node that a coordinator needs: its internal topic's partitions."""

    @property
    def name(self) -> str:
        """The topic."""

    def partition_count(self) -> int:
        """Partitions of the topic; 0 while it does not exist."""

    def partition(self, index: int) -> LogPartition | None:
        """The partition, if this node holds it."""

    async def create(self) -> None:
        """Create the topic if it does not exist."""


class Shard(Protocol):
    """One partition's worth of a coordinator's state."""

    async def load(self) -> None:
        """Read the log."""

    def close(self, error: ErrorCode, /) -> None:
        """Refuse requests that wait with `error`, and take no more."""


S = TypeVar("S", bound=Shard)


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition a key is kept in: abs(Java's String.hashCode) modulo the count."""
    code = _known_hash(key) if len(key) <= _KNOWN_LENGTH_MAX else _java_hash(key)
    return code % partition_count


_UNSIGNED = 0xFFFFFFFF
_PIECE_SIZE = 8192


def _masks() -> Iterator[tuple[int, int]]:
    """Yield widths of lanes in bits, and the number that has the low 32 bits, or all, of every
    second lane.
    """
    lane = 16
    while lane < 8 * _PIECE_SIZE:
        digits = min(lane, 32) // 4
        lanes = 8 * _PIECE_SIZE // (2 * lane)
        yield lane, int(("f" * digits).rjust(lane // 2, "0") * lanes, 16)
        lane *= 2


_MASKS = tuple(_masks())


def _java_hash(key: str) -> int:
    """Return the absolute value of Java's hash, which is 0 where there is none (-2^31).

    It is the sum of all UTF-16 units, each times a power of 31, modulo 2^32. A client may name
    thousands of long keys in one request, so not each unit is a step of Python's: the units of a
    piece are one number, whose neighbouring lanes are added all at once, until one lane is left.
    """
    data, code = key.encode("utf-16-be", "surrogatepass"), 0
    for first in range(0, len(data), _PIECE_SIZE):
        piece = data[first : first + _PIECE_SIZE]
        number, power = int.from_bytes(piece, "big"), 31
        for lane, mask in _MASKS:
            if lane >= 8 * len(piece):
                break
            number = (number >> lane & mask) * power + (number & mask)
            power = power * power & _UNSIGNED
        code = (code * pow(31, len(piece) // 2, _UNSIGNED + 1) + number) & _UNSIGNED
    if code >= 0x80000000:
        code = 0x100000000 - code
    return 0 if code == 0x80000000 else code


_KNOWN_LENGTH_MAX = 256
_known_hash = functools.lru_cache(maxsize=8192)(_java_hash)
"""A request looks for its shard more than once, and is one of many with its key."""


class Shards(Generic[S]):
    """The shards on this node; `make(index, log)` makes one, which is loaded then."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        clock: Clock,
        scope: TaskScope,
        make: Callable[[int, CoordinatorLog], S],
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._scope = scope
        self._make = make
        self._shards: dict[int, S] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._turns = LoadTurns()
        self._followed: dict[int, CoordinatorLog] = {}
        """The logs that another cluster writes, as far as they were read."""
        self._is_closed = False

    def close(self) -> None:
        """Refuse requests that wait with NOT_COORDINATOR; for the end of the node."""
        self._is_closed = True
        for shard in self._shards.values():
            shard.close(ErrorCode.not_coordinator)
        self._shards.clear()

    def on_election(self, topic: Topic, index: int) -> None:
        """Load the shard of a partition that this node leads from now on."""
        if topic.name == self._topic.name:
            self._load(index)

    def on_resignation(self, topic: Topic, index: int) -> None:
        """Let go of the shard of a partition that this node does not lead any more."""
        if topic.name != self._topic.name:
            return
        self._loading.pop(index, None)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close(ErrorCode.not_coordinator)

    def on_advance(self, topic: Topic, index: int) -> None:
        """Read what is new in the log of a shard, which another cluster writes. The shard as it was
        serves until then. An advance while it is read is followed by another reading.
        """
        if topic.name != self._topic.name or self._is_closed:
            return
        task = self._loading.pop(index, None)
        partition = self._topic.partition(index)
        if partition is None:
            return
        name = f"{self._topic.name}-{index}"
        self._loading[index] = self._scope.spawn_apart(
            self._read_after(task, index, partition, name), name=f"read {name} again"
        )

    async def _read_after(
        self, task: asyncio.Task[None] | None, index: int, partition: LogPartition, name: str
    ) -> None:
        if task is not None:
            await asyncio.wait([task])
        reading, pause_s = asyncio.current_task(), _READ_AGAIN_S
        try:
            while self._loading.get(index) is reading:  # else a later advance reads it
                log = self._followed.pop(index, None)
                if log is None or not log.goes_on(partition):
                    log = self._log_of(partition, name)
                if await self._read(index, partition, name, log):
                    self._followed[index] = log
                    return
                # An object was deleted in the copy before the state that replaces it was looked at.
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _READ_AGAIN_MAX_S)
        finally:
            if self._loading.get(index) is reading:
                del self._loading[index]

    async def partition_for(self, key: str) -> int:
        """Return the partition that a key is kept in, making the topic if there is none."""
        if self._topic.partition_count() == 0:
            await self._topic.create()
        index = partition_of(key, self._topic.partition_count())
        self.load_all()
        return index

    def loaded(self) -> list[S]:
        """Return the shards that serve now, by partition."""
        return [shard for _, shard in sorted(self._shards.items())]

    def at(self, index: int) -> S | None:
        """Return the shard of a partition, None when it does not serve here."""
        return self._shards.get(index)

    @property
    def is_loading(self) -> bool:
        """True while there are shards that do not serve yet."""
        return bool(self._loading)

    async def every(self) -> list[S]:
        """Return every shard of this node, loaded. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        self.load_all()
        for task in list(self._loading.values()):
            await self._loaded(task)
        return self.loaded()

    def serving(self, key: str) -> S | None:
        """Return the shard of a key, None where it is not loaded yet. Raises KafkaError:
        NOT_COORDINATOR.
        """
        return self._shards.get(self._index(key))

    def _index(self, key: str) -> int:
        count = self._topic.partition_count()
        if count == 0 or self._is_closed:
            raise KafkaError(ErrorCode.not_coordinator)
        index = partition_of(key, count)
        if self._topic.partition(index) is None:
            raise KafkaError(ErrorCode.not_coordinator)
        return index

    async def of(self, key: str) -> S:
        """Return the shard of a key. Raises KafkaError: NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        index = self._index(key)
        shard = self._shards.get(index)
        if shard is None:
            task = self._load(index)
            if task is None:
                raise KafkaError(ErrorCode.not_coordinator)
            await self._loaded(task)
            shard = self._shards.get(index)
            if shard is None:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
        return shard

    def load_all(self) -> None:
        """Begin to load what this node holds and has not loaded."""
        if not self._is_closed:
            for index in range(self._topic.partition_count()):
                self._load(index)

    def _load(self, index: int) -> asyncio.Task[None] | None:
        task = self._loading.get(index)
        if task is None and index not in self._shards:
            partition = self._topic.partition(index)
            if partition is None:
                return None
            name = f"{self._topic.name}-{index}"
            task = self._scope.spawn_apart(
                self._read_once(index, partition, name), name=f"load {name}"
            )
            self._loading[index] = task
        return task

    async def _read_once(self, index: int, partition: LogPartition, name: str) -> None:
        try:
            log = self._log_of(partition, name)
            await self._read(index, partition, name, log)
        finally:
            if self._loading.get(index) is asyncio.current_task():
                del self._loading[index]

    def _log_of(self, partition: LogPartition, name: str) -> CoordinatorLog:
        give_way = self._turns.give_way
        return CoordinatorLog(partition, self._clock, self._scope, name=name, give_way=give_way)

    async def _read(
        self, index: int, partition: LogPartition, name: str, log: CoordinatorLog
    ) -> bool:
        """Load a shard, and serve it if the partition is still here. Return false if it is, and its
        log could not be read.
        """
        shard = self._make(index, log)
        try:
            await shard.load()
        except (LakeheadError, ValueError) as error:
            _log.warning("shard_not_loaded", partition=name, error=str(error))
            shard.close(ErrorCode.not_coordinator)  # what it has read takes memory of groups
            return self._is_closed or self._topic.partition(index) is not partition
        if not self._is_closed and self._topic.partition(index) is partition:
            before = self._shards.get(index)
            self._shards[index] = shard
            if before is not None:
                before.close(ErrorCode.not_coordinator)
        else:
            shard.close(ErrorCode.not_coordinator)
        return True

    async def _loaded(self, task: asyncio.Task[None]) -> None:
        """Wait for a shard, but not for ever: clients send the request again."""
        try:
            async with asyncio.timeout(_LOAD_WAIT_SECONDS):
                await asyncio.shield(task)
        except TimeoutError:
            raise KafkaError(ErrorCode.coordinator_load_in_progress) from None


async def durable(outcome: asyncio.Future[Exception | None], timeout_s: float) -> None:
    """Wait until what a shard has appended is durable. Raises KafkaError: NOT_COORDINATOR where the
    partition is not led here any more, COORDINATOR_NOT_AVAILABLE where the log is slow.
    """
    try:
        async with asyncio.timeout(timeout_s):
            error = await asyncio.shield(outcome)
    except TimeoutError:
        raise slow_log() from None
    if error is not None:
        raise refusal(error)


def refusal(error: Exception) -> KafkaError:
    """Return the error that clients get when a log could not be written."""
    code = error_code(error)
    if code is ErrorCode.not_leader_or_follower:
        code = ErrorCode.not_coordinator
    return KafkaError(code, str(error))


def slow_log() -> KafkaError:
    """Return the error that a client gets when it has waited too long."""
    return KafkaError(ErrorCode.coordinator_not_available, "the log is slow")
