"""Options of a table of Spark's catalog in the comment of its first column, as a URL's query.

Options of a query (`SELECT * FROM lakehead.orders WITH (endingOffsets = '...')`) take precedence.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MARK = "lakehead source "
_PLAIN = '/:,{}[]"'
"""Characters that stay as they are. No quote and no backslash of SQL's strings does."""


def comment_of(options: Mapping[str, str]) -> str:
    """Return the comment that has these options."""
    return _MARK + urlencode(options, safe=_PLAIN)


def with_table_options(given: Mapping[str, str], schema: "StructType") -> Mapping[str, str]:
    """Return the options of a read, with those of the table that it reads, if it does.

    Raises SettingsError for a comment that was changed.
    """
    comment = (schema.fields[0].metadata or {}).get("comment", "") if schema.fields else ""
    if not comment.startswith(_MARK):
        return given
    try:
        found = dict(parse_qsl(comment.removeprefix(_MARK), strict_parsing=True))
    except ValueError:
        raise SettingsError(
            f"the comment of column {schema.fields[0].name!r} is not what create_table wrote: "
            f"{comment!r}: create the table again"
        ) from None
    names = {name.lower() for name in given}
    return {name: one for name, one in found.items() if name.lower() not in names} | dict(given)
