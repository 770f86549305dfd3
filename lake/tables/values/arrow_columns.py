"""Filled cells to Arrow arrays, by shape.

This makes the checks that kernels leave out, a column at a time: text is UTF-8, decimals and
timestamps fit their types. A cell that fails is traced to its row; the caller decodes
the other rows again, which only bad input costs.
"""

from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.ddl import TIMESTAMP, type_name
from lakehead.lake.tables.values.cells import NOTHING, ROWS, SIZE_BITS, SIZE_MASK, Cells
from lakehead.lake.tables.values.shape import Constant, FirstOf, Instant, Items, Leaf, Record, Shape

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_DIGITS = [i for i in range(36) if i not in (8, 13, 18, 23)]
_DECIMAL_BYTES_MAX = 64
_EXACT = Context(prec=100)
_ZONE = r"(?i)z$|[T ].*[+-]\d\d(:?\d\d)?$"
"""The zone at the end of the text of an instant; without one it is UTC."""
_FINER = r"(\.\d{6})\d+"
"""A fraction of a second beyond microseconds: Go's RFC3339Nano has nine digits."""
_UNSIGNED = pa.decimal128(20, 0)
_SECONDS = range(-62_135_596_800, 253_402_300_800)  # protobuf: years 1 to 9999


class ArrowColumns:
    """Builds the arrays of one decode. `faults` are (row among the rows held -> why)."""

    def __init__(self, data: Any, cells: Cells) -> None:
        self._data = data
        self._side = cells.side
        self._cells = cells
        self._lists: dict[int, Items] = {}
        self._path = ""
        self.faults: dict[int, str] = {}

    def build(self, shape: Shape, path: str) -> Any:
        """Return the array of a shape: as long as its domain. `path` names its field."""
        outer, self._path = self._path, path
        array = self._build(shape)
        self._path = outer
        return array

    def _build(self, shape: Shape) -> Any:
        if isinstance(shape, Constant):
            return self._constant(shape)
        if isinstance(shape, Record):
            validity = None if shape.slot < 0 else self._validity(shape.slot)
            names = (shape.type.field(i).name for i in range(shape.type.num_fields))
            children = [
                self.build(field, f"{self._path}.{name}")
                for name, field in zip(names, shape.fields, strict=True)
            ]
            length = self._cells.length(shape.domain)
            return pa.Array.from_buffers(shape.type, length, [validity], children=children)
        if isinstance(shape, Items):
            return self._items(shape)
        if isinstance(shape, FirstOf):
            return pc.coalesce(*map(self._build, shape.options))
        return self._instant(shape) if isinstance(shape, Instant) else self._leaf(shape)

    def _constant(self, shape: Constant) -> Any:
        length = self._cells.length(shape.domain)
        if shape.value is None:
            return pa.nulls(length, shape.type)
        return pa.repeat(pa.scalar(shape.value, shape.type), length)

    def _items(self, shape: Items) -> Any:
        self._lists[shape.items] = shape
        counts, _ = self._cells.slot(shape.slot)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        validity = None if shape.always else self._validity(shape.slot)
        buffers = [validity, pa.py_buffer(offsets)]
        children = [self.build(shape.item, f"{self._path}[]")]
        return pa.Array.from_buffers(shape.type, len(counts), buffers, children=children)

    def _leaf(self, shape: Leaf) -> Any:
        values, _ = self._cells.slot(shape.slot)
        validity = None if shape.always else self._validity(_valid_by(shape))
        match shape.kind:
            case "bytes" | "text":
                return self._binary(shape, shape.type, values)
            case "parsed":
                return self._parsed(shape, values, validity)
            case "enum":
                return self._enum(shape, values, validity)
            case "decimal":
                return self._decimal(shape, values, validity, self._data)
            case "base64":
                return self._base64(shape, values, validity)
            case "uuid":
                return self._uuid(shape, values, validity)
            case "message":
                return self._message(shape, self._binary(shape, pa.binary(), values))
            case "variant":
                return self._variant(shape, values, validity)
        return self._plain(shape, values, validity)

    def _plain(self, shape: Leaf, values: Any, validity: Any) -> Any:
        """Arrays of numbers and booleans."""
        match shape.kind:
            case "integer":
                return self._integer(shape, values, validity)
            case "unsigned":
                wide = np.zeros((len(values), 2), np.int64)
                wide[:, 0] = values
                return _fixed(_UNSIGNED, wide, len(values), validity).cast(shape.type)
            case "float32":
                floats = values.astype(np.uint32).view(np.float32)
                return _fixed(shape.type, _as(floats, shape.type), len(values), validity)
            case "float64":
                return _fixed(shape.type, _as(values.view(np.float64), shape.type), None, validity)
            case "number":
                return self._number(shape, values, validity)
        assert shape.kind == "boolean", shape.kind
        packed = np.packbits(values != 0, bitorder="little")
        return _fixed(shape.type, packed, len(values), validity)

    # ------------------------------------------------------------------------------- by kind

    def _integer(self, shape: Leaf, values: Any, validity: Any) -> Any:
        if shape.numerator != 1:
            most = np.iinfo(np.int64).max // shape.numerator
            outside = (values > most) | (values < -most)
            if outside.any():
                self._fault(shape.domain, outside, "a time that no calendar holds")
            values = values * shape.numerator
        if shape.denominator != 1:
            values = values // shape.denominator
        return _fixed(shape.type, _as(values, shape.type), len(values), validity)

    def _number(self, shape: Leaf, values: Any, validity: Any) -> Any:
        from lakehead.lake.tables.values.text_kernels import read_doubles

        _, valid = self._cells.slot(shape.slot)
        with np.errstate(over="ignore"):
            numbers = _as(read_doubles(self._data, values, valid), shape.type)
        beyond = np.isinf(numbers)
        if beyond.any():
            self._fault(shape.domain, beyond, f"a number beyond {type_name(shape.type)}")
        return _fixed(shape.type, numbers, len(values), validity)

    def _parsed(self, shape: Leaf, values: Any, validity: Any) -> Any:
        """Text as a date, an instant or a decimal, where Arrow takes it for one."""
        from lakehead.lake.tables.values.text_kernels import read_instants

        if shape.type == TIMESTAMP:
            _, valid = self._cells.slot(_valid_by(shape))
            micros = read_instants(self._data, self._side, values, valid)
            if micros is not None:
                return _fixed(shape.type, micros, len(values), validity)
        text = self._binary(shape, pa.string(), values)
        try:
            return _from_text(text, shape.type)
        except pa.ArrowInvalid:
            bad = np.array([not _is_from_text(text[i : i + 1], shape.type) for i in _all(text)])
            self._fault(shape.domain, bad, f"text that is not {type_name(shape.type)}")
            return pa.nulls(len(text), shape.type)

    def _binary(self, shape: Leaf, kind: Any, values: Any) -> Any:
        from lakehead.lake.tables.values.text_kernels import gather_texts

        valid = None if shape.always else self._cells.slot(_valid_by(shape))[1]
        buffers = [
            None if buffer is None else pa.py_buffer(buffer)
            for buffer in gather_texts(self._data, self._side, values, valid)
        ]
        array = pa.Array.from_buffers(kind, len(values), buffers)
        if pa.types.is_string(kind) and self._side is NOTHING:
            self._check(shape, array, "text that is not UTF-8", _is_text)
        return array

    def _enum(self, shape: Leaf, values: Any, validity: Any) -> Any:
        numbers = np.array([number for number, _ in shape.names], np.int64)
        names = pa.array([name for _, name in shape.names], pa.string())
        at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        unknown = numbers[at] != values
        if not shape.always:
            unknown &= self._cells.slot(_valid_by(shape))[1] != 0
        if unknown.any():  # an open enum: a newer writer's, by its number
            fresh = sorted(set(values[unknown].tolist()))
            names = pa.concat_arrays([names, pa.array([str(n) for n in fresh], pa.string())])
            at[unknown] = len(numbers) + np.searchsorted(fresh, values[unknown])
        return names.take(_fixed(pa.int64(), at, len(at), validity))

    def _base64(self, shape: Leaf, values: Any, validity: Any) -> Any:
        from lakehead.lake.tables.values.text_kernels import decode_base64

        _, valid = self._cells.slot(shape.slot)
        content, found, bad = decode_base64(self._data, self._side, values, valid)
        if bad.any():
            self._fault(shape.domain, bad, "text that is not base64, for bytes")
        if shape.native is not None:
            return self._decimal(shape, found, validity, content)
        sizes = found & SIZE_MASK
        offsets = np.zeros(len(found) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(content)]
        return pa.Array.from_buffers(shape.type, len(found), buffers)

    def _decimal(self, shape: Leaf, values: Any, validity: Any, data: Any) -> Any:
        _, valid = self._cells.slot(_valid_by(shape))
        sizes = np.where(valid != 0, values & SIZE_MASK, 0)
        places = values >> SIZE_BITS
        digits = np.zeros((len(values), 16), np.uint8)  # little-endian
        bad = sizes > _DECIMAL_BYTES_MAX
        for size in np.unique(sizes[~bad]).tolist():
            if not size:
                continue
            rows = np.flatnonzero(sizes == size)
            block = data[places[rows][:, None] + np.arange(size)]
            low = block[:, -16:]
            sign = np.where(low[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
            bad[rows] |= (block[:, :-16] != sign).any(axis=1)
            wide = np.repeat(sign, 16, axis=1)
            wide[:, 16 - low.shape[1] :] = low
            digits[rows] = wide[:, ::-1]
        native = shape.native
        digits[bad] = 0
        reason = f"a number beyond DECIMAL({native.precision}, {native.scale})"
        if bad.any():
            self._fault(shape.domain, bad, reason)
        array = _fixed(native, digits, len(values), validity)
        self._check(shape, array, reason, lambda each: _fits(each, native))
        return array if native == shape.type or self.faults else array.cast(shape.type)

    def _uuid(self, shape: Leaf, values: Any, validity: Any) -> Any:
        _, valid = self._cells.slot(_valid_by(shape))
        rows = np.flatnonzero(valid)
        block = np.zeros((len(values), 16), np.uint8)
        block[rows] = self._data[(values[rows] >> SIZE_BITS)[:, None] + np.arange(16)]
        text = np.full((len(values), 36), ord("-"), np.uint8)
        nibbles = np.stack([block >> 4, block & 0x0F], axis=2).reshape(len(values), 32)
        text[:, _UUID_DIGITS] = _HEX[nibbles]
        offsets = np.arange(len(values) + 1, dtype=np.int32) * 36
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(shape.type, len(values), buffers)

    def _message(self, shape: Leaf, content: Any) -> Any:
        """Messages as JSON: of any depth and names, so one after the other."""
        from lakehead.lake.tables.values.protobuf_json import message_json

        texts: list[str | None] = []
        bad = np.zeros(len(content), np.bool_)
        for i, each in enumerate(content.to_pylist()):
            try:
                texts.append(None if each is None else message_json(shape.native, each))
            except ValueError:
                texts.append(None)
                bad[i] = True
        if bad.any():
            self._fault(shape.domain, bad, f"bytes that are not JSON of {shape.native}")
        return pa.array(texts, shape.type)

    def _variant(self, shape: Leaf, values: Any, validity: Any) -> Any:
        from lakehead.lake.tables.values.variant_kernel import FAULTS, encode_variants

        _, valid = self._cells.slot(shape.slot)
        value, ends, names, name_ends, codes = encode_variants(self._data, values, valid)
        for code, reason in FAULTS.items():
            if (bad := codes == code).any():
                self._fault(shape.domain, bad, reason)
        children = [
            pa.Array.from_buffers(
                pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
            )
            for offsets, content in ((name_ends, names), (ends, value))
        ]
        return pa.Array.from_buffers(shape.type, len(values), [validity], children=children)

    def _instant(self, shape: Instant) -> Any:
        seconds, _ = self._cells.slot(shape.seconds)
        nanos, _ = self._cells.slot(shape.nanos)
        bad = (seconds < _SECONDS.start) | (seconds >= _SECONDS.stop)
        bad |= (nanos < 0) | (nanos > 999_999_999)
        if bad.any():
            self._fault(shape.domain, bad, "a time that no calendar holds")
        micros = seconds * 1_000_000 + nanos // 1000
        validity = None if shape.slot < 0 else self._validity(shape.slot)
        return _fixed(shape.type, micros, len(micros), validity)

    # -------------------------------------------------------------------------- what is wrong

    def _check(self, shape: Leaf, array: Any, reason: str, is_good: Any) -> None:
        """Let Arrow look at a whole column; look for the culprits only if it complains."""
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            bad = np.array([not is_good(each) for each in array], np.bool_)
            self._fault(shape.domain, bad, reason)

    def _fault(self, domain: int, bad: Any, reason: str) -> None:
        """Trace bad cells to the rows that hold them; the reason begins with the field."""
        found = np.flatnonzero(bad)
        while domain != ROWS:
            shape = self._lists[domain]
            ends = np.cumsum(self._cells.slot(shape.slot)[0])
            found = np.searchsorted(ends, found, side="right")
            domain = shape.domain
        for row in found.tolist():
            self.faults.setdefault(row, f"field {self._path}: {reason}")

    def _validity(self, slot: int) -> Any:
        _, valid = self._cells.slot(slot)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _valid_by(shape: Leaf) -> int:
    return shape.slot if shape.valid_by is None else shape.valid_by


def _fixed(kind: Any, values: Any, length: int | None, validity: Any) -> Any:
    values = np.ascontiguousarray(values)
    count = len(values) if length is None else length
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(values)])


def _as(values: Any, kind: Any) -> Any:
    """Numbers in the width of an Arrow type."""
    if pa.types.is_timestamp(kind):
        return values
    return values.astype(np.int32 if pa.types.is_date32(kind) else kind.to_pandas_dtype())


def _all(array: Any) -> range:
    return range(len(array))


def _from_text(text: Any, kind: Any) -> Any:
    if not pa.types.is_timestamp(kind):
        return text.cast(kind)
    try:
        return _from_instants(text, kind)
    except pa.ArrowInvalid:  # what is finer is cut off, as Spark does
        return _from_instants(pc.replace_substring_regex(text, _FINER, r"\1"), kind)


def _from_instants(text: Any, kind: Any) -> Any:
    for each in (kind, pa.timestamp("us")):  # mostly all are written alike
        try:
            return text.cast(each).view(kind)
        except pa.ArrowInvalid:
            continue
    zoned = pc.match_substring_regex(text, _ZONE)
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(zoned, nothing, text).cast(pa.timestamp("us")).view(kind)
    return pc.coalesce(pc.if_else(zoned, text, nothing).cast(kind), local)


def _is_from_text(text: Any, kind: Any) -> bool:
    try:
        _from_text(text, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _is_text(scalar: Any) -> bool:
    buffer = scalar.as_buffer()
    if buffer is None:
        return True
    try:
        buffer.to_pybytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _fits(scalar: Any, kind: Any) -> bool:
    number = scalar.as_py()
    # Python rounds decimals to 28 digits by default.
    return number is None or abs(int(number.scaleb(kind.scale, _EXACT))) < 10**kind.precision
