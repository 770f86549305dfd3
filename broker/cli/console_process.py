"""The process that does the lake's part of a node's console.

A node does not load the packages of the lake. Its console writes requests to this process as lines
of JSON, and gets one line for each (`lakehead.broker.console.lake_process`). The process ends with
its standard input, which the node holds open, or after some minutes without a request.
"""

import base64
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError

_IDLE_S = 600.0
_LETTER_MAX = 64 << 10
"""Bytes of a dead letter's value that are read: one of class `batch` is a whole batch."""
_NICENESS = 10
"""Serving comes first."""

Request = Mapping[str, Any]


def main() -> None:
    """Respond to requests until standard input ends."""
    os.nice(_NICENESS)
    # A library that prints must not write between the responses.
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _import_all()
    responses.write(b"ready\n")
    responses.flush()
    while select.select([sys.stdin.fileno()], [], [], _IDLE_S)[0]:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        responses.write(json.dumps(_response(json.loads(line))).encode() + b"\n")
        responses.flush()


def _import_all() -> None:
    """Import what takes long, before a request has to be done within its time."""
    import_module("lakehead.lake.tables.readable_values")
    import_module("lakehead.lake.jobs.table_runs")
    import_module("lakehead.lake.jobs.table_status")
    import_module("deltalake")


def _response(request: Request) -> Mapping[str, Any]:
    try:
        return {"found": _WORK[request["work"]](request)}
    except LakeheadError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - one request never stops the others
        traceback.print_exc()
        return {"error": f"unexpected {type(error).__name__} (the node's log has the traceback)"}


def _decode(request: Request) -> list[Mapping[str, Any]]:
    """Keys or values of a topic as JSON text (`lakehead.lake.tables.readable_values`)."""
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.jobs.table_settings import value_spec
    from lakehead.lake.tables.readable_values import FORMATS
    from lakehead.lake.tables.registry import schema_registry

    data = [None if one is None else base64.b64decode(one) for one in request["values"]]
    declared = TableDeclaration.parse(request["topic"], request["topic_id"], request["configs"])
    spec = value_spec(declared)
    if not spec.registry and not request["are_keys"] and spec.value_format in FORMATS.values():
        found = _values().by_declaration(data, spec)
    else:
        url = spec.registry or request["registry"]
        if not url:
            raise SettingsError("no registry is known for these values")
        found = _values().by_registry(
            data,
            schema_registry(url),
            url,
            is_declared=bool(spec.registry) and not request["are_keys"],
            may_read=_rights(request, url),
        )
    return [one._asdict() for one in found]


@cache
def _values() -> Any:
    from lakehead.lake.tables.readable_values import ReadableValues

    return ReadableValues()


def _rights(request: Request, url: str) -> Callable[[int], bool]:
    """Return what judges a viewer's rights by the roles of the node's own registry. Another
    registry's are not known here.
    """
    own_port = _port(request["registry"])
    if not request["roles"] or own_port not in map(_port, url.split(",")):
        return lambda _schema_id: True
    return partial(_has_role, url, request["roles"], request["viewer"])


def _port(url: str) -> int | None:
    return urlsplit(url.strip()).port


def _has_role(url: str, roles: str, viewer: str, schema_id: int) -> bool:
    from lakehead.connectors.schema_registry.access import READ, read_roles
    from lakehead.connectors.schema_registry.subjects import parse_subject
    from lakehead.lake.tables.registry import schema_registry

    try:
        grants = read_roles(Path(roles)).get(viewer, ())
    except OSError as error:
        raise SettingsError(f"registry.roles: {error}") from None
    subjects: Sequence[str] = schema_registry(url).subjects(schema_id)
    return any(
        grant.covers(READ, parse_subject(subject).qualified)
        for subject in subjects
        for grant in grants
    )


def _tables(request: Request) -> list[Mapping[str, Any]]:
    """The status of the tables of some topics, as `lakehead tables` has it."""
    from lakehead.lake.jobs.table_status import table_statuses
    from lakehead.lake.store_reader import store_reader

    catalog = store_reader(request["store"]).open_catalog()
    statuses = table_statuses(
        catalog,
        SystemClock().now_ms(),
        topics=request["topics"],
        timeout_s=request["timeout_s_of_tables"],
    )
    return [asdict(one) for one in statuses]


def _runs(request: Request) -> list[Mapping[str, Any]]:
    """The newest commits of a table, by its root."""
    from lakehead.lake.jobs.table_runs import last_runs

    runs = last_runs(request["table"], request["count"])
    return [asdict(one) | {"dollars": one.cost.dollars} for one in runs]


def _dead_letters(request: Request) -> Mapping[str, Any]:
    """Dead letters of a table, those that were added last; bytes are in base64."""
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.jobs.table_due import chosen_tables
    from lakehead.lake.jobs.table_runs import read_dead_letters
    from lakehead.lake.store_reader import store_reader

    catalog = store_reader(request["store"]).open_catalog()
    declared = chosen_tables(catalog, [request["key"]]).get(request["key"])
    if not isinstance(declared, TableDeclaration):
        raise declared or SettingsError(f"{request['key']} is not one table")
    found = read_dead_letters(
        catalog,
        declared.key,
        declared.uri(catalog.uri),
        count=request["count"],
        error_class=request["error_class"],
    )
    return {
        "counts": found.counts,
        "letters": [
            {
                "partition": one["_partition"],
                "offset": one["_offset"],
                "timestamp": _milliseconds(one["_timestamp"]),
                "key": _text_of(one["_key"]),
                "value": _text_of(one["value"][:_LETTER_MAX] if one["value"] else one["value"]),
                "error": one["error"],
                "error_class": one["error_class"],
                "schema_id": one["schema_id"],
            }
            for one in found.letters
        ],
    }


def _milliseconds(time: Any) -> int:
    return -1 if time is None else round(time.timestamp() * 1000)


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


_WORK: Mapping[str, Callable[[Request], Any]] = {
    "decode": _decode,
    "tables": _tables,
    "runs": _runs,
    "dead_letters": _dead_letters,
}

if __name__ == "__main__":
    main()
