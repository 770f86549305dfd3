"""The page of the checks of all APIs, made from what the APIs declare."""

from collections.abc import Iterator

from lakehead.broker import api
from lakehead.broker.protocol.api import Api
from lakehead.broker.security.access import Access
from lakehead.broker.security.authorizer import AclOperation, ResourceType

_INTRODUCTION = """\
# Checks of APIs

Each API makes these checks, in this order, when `authorizer.class.name` is set. The page about
[authorisation](authorization.md) has the rules. With *left out or passed on* the client gets no
error: the note names the consequence."""


def authorization_page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, "", *_rows()]) + "\n"


def operation_word(operation: AclOperation) -> str:
    """Return the name of an operation as Kafka's documentation writes it."""
    return "".join(part.capitalize() for part in operation.name.split("_"))


def resource_word(resource_type: ResourceType) -> str:
    """Return the name of a type of resources as Kafka's documentation writes it."""
    return "".join(part.capitalize() for part in resource_type.name.split("_"))


def _rows() -> Iterator[str]:
    yield "| API | Operation | Resource | Error of a denial | Note |"
    yield "| --- | --- | --- | --- | --- |"
    for one in api.registry().apis():
        yield from map(_row, [one] * len(one.access), one.access)
        if not one.access:
            yield f"| {one.name} ({one.key}) | none | | | {one.open_to_all} |"


def _row(one: Api, access: Access) -> str:
    denial = "left out or passed on" if access.denial is None else f"`{access.denial.name.upper()}`"
    operation, resource = operation_word(access.operation), resource_word(access.resource_type)
    return f"| {one.name} ({one.key}) | {operation} | {resource} | {denial} | {access.note} |"
