"""AlterUserScramCredentials, key 51, version 0: set and remove credentials of users (KIP-554).

The client sends a salted password, of which the keys are derived that the metadata hold. All
changes of a request that are allowed are one entry. The order of results is Kafka's: deletions,
upsertions, errors.
"""

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.broker.security.sasl.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramMechanism,
)
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import Record, ScramDelete, ScramUpsert
from lakehead.storage.metadata.state import MetadataImage

API = Api(
    key=51,
    name="AlterUserScramCredentials",
    versions=(0, 0),
    is_at_once=True,
    access=(ALTER_CLUSTER,),
)

_BY_NUMBER = {one.number: one for one in SCRAM_MECHANISMS.values()}
_SALT_MAX = 1_024

Fault = tuple[ErrorCode, str | None]
_NONE: Fault = (ErrorCode.none, None)
_TWICE: Fault = (
    ErrorCode.duplicate_resource,
    "A user credential cannot be altered twice in the same request",
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each user, once the credentials are in the metadata."""
    if not context.may(ALTER_CLUSTER):
        names = [one.name for one in (*request.deletions, *request.upsertions)]
        denied: Fault = (ALTER_CLUSTER.error, "Cluster authorization failed.")
        return _response(dict.fromkeys(names, denied), context)
    results = _plan(request, context.services.state)[1]  # it may be too late for another plan

    def plan(state: MetadataImage) -> Sequence[Record]:
        nonlocal results
        records, results = _plan(request, state)
        return records

    try:
        async with Deadline().limit():
            await context.services.metadata.commit_with(plan)
    except (LakeheadError, TimeoutError) as error:
        fault = (error_code(error), error_message(error))
        results = {name: fault if one == _NONE else one for name, one in results.items()}
    return _response(results, context)


def _plan(request: Any, state: MetadataImage) -> tuple[list[Record], dict[str, Fault]]:
    """Return the records of what is allowed, and the results by user in Kafka's order."""
    faults: dict[str, Fault] = {}
    deletions: dict[str, Record] = {}
    upsertions: dict[str, Record] = {}
    for deletion in request.deletions:
        name = deletion.name
        if name in faults:
            continue
        if deletions.pop(name, None) is not None:
            faults[name] = _TWICE
        elif fault := _deletion_fault(deletion, state):
            faults[name] = fault
        else:
            mechanism = _BY_NUMBER[deletion.mechanism]
            deletions[name] = ScramDelete(user=name, mechanism=mechanism.name)
    for upsertion in request.upsertions:
        name = upsertion.name
        if name in faults:
            continue
        before = (deletions.pop(name, None), upsertions.pop(name, None))
        if before != (None, None):
            faults[name] = _TWICE
        elif fault := _upsertion_fault(upsertion):
            faults[name] = fault
        else:
            upsertions[name] = _upsert(upsertion, _BY_NUMBER[upsertion.mechanism])
    done = dict.fromkeys([*deletions, *upsertions], _NONE)
    return [*deletions.values(), *upsertions.values()], done | faults


def _upsert(upsertion: Any, mechanism: ScramMechanism) -> ScramUpsert:
    made = mechanism.credential(upsertion.salted_password, upsertion.salt, upsertion.iterations)
    return ScramUpsert(
        user=upsertion.name,
        mechanism=mechanism.name,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )


def _deletion_fault(deletion: Any, state: MetadataImage) -> Fault | None:
    fault = _name_fault(deletion)
    if fault is not None:
        return fault
    if (deletion.name, _BY_NUMBER[deletion.mechanism].name) not in state.scram_credentials:
        return (
            ErrorCode.resource_not_found,
            "Attempt to delete a user credential that does not exist",
        )
    return None


def _upsertion_fault(upsertion: Any) -> Fault | None:
    fault = _name_fault(upsertion)
    if fault is not None:
        return fault
    if upsertion.iterations < MIN_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if upsertion.iterations > MAX_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    if not 0 < len(upsertion.salt) <= _SALT_MAX or not upsertion.salted_password:
        return ErrorCode.unacceptable_credential, "Empty password, or empty or too long salt"
    return None


def _name_fault(change: Any) -> Fault | None:
    if not change.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    if change.mechanism not in _BY_NUMBER:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    return None


def _response(results: dict[str, Fault], context: RequestContext) -> Any:
    module = context.response
    return entity(
        module,
        "AlterUserScramCredentialsResponse",
        results=[
            entity(
                module,
                "AlterUserScramCredentialsResult",
                user=name,
                error_code=code,
                error_message=message,
            )
            for name, (code, message) in results.items()
        ],
    )
