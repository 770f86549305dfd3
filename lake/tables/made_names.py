"""Records with a field that has the name of a column which the table makes itself.

Such a field can be no column. Its record is a fault by itself; its neighbours are not.
"""

from typing import Any

import pyarrow as pa


def names_of_made(found: Any, made: set[str]) -> list[str]:
    """Return the fields of a schema (None: no schema) that have one of the names `made`, in any
    case of letters.
    """
    return [] if found is None else [name for name in found.names if name.lower() in made]


def without_made(schema: Any, made: set[str]) -> Any:
    """Return the schema without the fields that have one of the names `made`."""
    return pa.schema([field for field in schema if field.name.lower() not in made])
