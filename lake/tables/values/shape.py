"""The shape of decoded values: which slots make which Arrow column.

A schema's compiler makes a tree of these beside its program; `arrow_columns` builds Arrow arrays
from the tree and the filled cells.
"""

from dataclasses import dataclass
from typing import Any, Literal

LeafKind = Literal[
    "integer",
    "unsigned",
    "float32",
    "float64",
    "boolean",
    "bytes",
    "text",
    "enum",
    "decimal",
    "uuid",
    "number",
    "parsed",
    "base64",
    "message",
    "variant",
]
"""Content of a leaf's cells: an integer; one to be read as unsigned; the bits of a float; 0 or 1; a
place of bytes, of UTF-8, of a big-endian two's complement number, of a UUID's 16 bytes; a number
that stands for a name. For JSON: a place of a number's text; a place of text that Arrow makes a
date, an instant or a decimal, or of bytes (or a decimal's number in bytes) in base64; a place of
any value as it is written. For Protobuf: a place of a message that becomes JSON.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A column of scalars. `type` is the column's; the cells are made to fit it.

    `numerator / denominator` scales an integer (milliseconds to microseconds). `names` are those of
    an enum by number, in order. `native` is what a decimal is before it is made to fit `type`, or
    the name of a message. `valid_by` is the slot that says whether it is null, if not its own;
    `always` means never null where its parent is not.
    """

    kind: LeafKind
    slot: int
    domain: int
    type: Any
    numerator: int = 1
    denominator: int = 1
    native: Any = None
    names: tuple[tuple[int, str], ...] = ()
    valid_by: int | None = None
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Fields side by side. A slot of -1: never null. `type` is a struct."""

    slot: int
    domain: int
    type: Any
    fields: tuple["Shape", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list, or a map as a list of its entries. Its cells count the items, which lie in order in
    domain `items`.
    """

    slot: int
    domain: int
    items: int
    type: Any
    item: "Shape"
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Protobuf's Timestamp: null by `slot` (-1: never), its fields in slots of their own."""

    slot: int
    domain: int
    seconds: int
    nanos: int
    type: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same value everywhere: a default, or null."""

    domain: int
    type: Any
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOf:
    """A column that lies in the cells of several, of which one at most is set."""

    domain: int
    type: Any
    options: tuple[Leaf, ...]


Shape = Leaf | Record | Items | Instant | Constant | FirstOf
