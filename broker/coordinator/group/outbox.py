"""The effects that one event of a group has, gathered in order."""

from dataclasses import replace

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.members import Member
from lakehead.broker.coordinator.group.messages import (
    UNKNOWN_MEMBER,
    Effect,
    GroupSnapshot,
    Joined,
    JoinResult,
    Store,
    Synced,
    SyncResult,
    Ticket,
)


class Outbox:
    """Gathers effects until the event is over; a ticket leaves its member when it is answered."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._last_token = 0

    def take(self) -> list[Effect]:
        """Return what was gathered and start anew."""
        effects, self._effects = self._effects, []
        return effects

    def joined(self, ticket: Ticket, result: JoinResult) -> None:
        """Answer a JoinGroup."""
        self._effects.append(Joined(ticket=ticket, result=result))

    def synced(self, ticket: Ticket, result: SyncResult) -> None:
        """Answer a SyncGroup."""
        self._effects.append(Synced(ticket=ticket, result=result))

    def fail_join(self, member: Member, error: ErrorCode) -> None:
        """Answer the JoinGroup of a member that waits, if it does, with an error. One that is not
        known any more has no id.
        """
        if member.join_ticket is not None:
            ticket, member.join_ticket = member.join_ticket, None
            is_known = error is not ErrorCode.unknown_member_id
            member_id = member.member_id if is_known else UNKNOWN_MEMBER
            self.joined(ticket, JoinResult(error=error, member_id=member_id))

    def fail_sync(self, member: Member, error: ErrorCode) -> None:
        """Answer the SyncGroup of a member that waits, if it does, with an error."""
        if member.sync_ticket is not None:
            ticket, member.sync_ticket = member.sync_ticket, None
            self.synced(ticket, SyncResult(error=error))

    def returned(
        self, member: Member, ticket: Ticket, result: JoinResult, error: ErrorCode | None
    ) -> None:
        """Answer a static member that came back, now that this is stored or cannot be, unless it
        was answered meanwhile.
        """
        if member.join_ticket is not ticket:
            return
        if error is None:
            member.join_ticket = None
            self.joined(ticket, result)
        else:
            self.fail_join(member, error)

    def store(self, snapshot: GroupSnapshot, assignments: dict[str, bytes]) -> int:
        """Ask for a generation to be stored with these assignments; return the store's token."""
        self._last_token += 1
        members = tuple(
            replace(member, assignment=assignments.get(member.member_id, b""))
            for member in snapshot.members
        )
        stored = replace(snapshot, members=members)
        self._effects.append(Store(snapshot=stored, token=self._last_token))
        return self._last_token
