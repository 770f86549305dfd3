"""The place of one response in the order of a connection."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakehead.broker.network.request_memory import Piece

if TYPE_CHECKING:
    from lakehead.broker.network.connection import Connection


class Slot:
    """The place of one response in the order of a connection."""

    __slots__ = ("cancel", "connection", "pieces")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.pieces: Sequence[Piece] | None = None
        self.cancel: Callable[[], object] | None = None
        """Called when the connection is lost before the response is ready."""

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Give the response; it is sent when those before it are."""
        self.pieces = pieces
        self.cancel = None
        self.connection.ready()
