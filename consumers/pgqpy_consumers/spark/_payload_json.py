"""Many JSON objects at once, by Arrow's reader: hundreds of thousands a second on a core.

Arrow's reader is quick and strict: if one payload differs from the schema in any way, it refuses
the whole piece. Then `_payload_texts` decides, payload by payload. Both give the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pgqpy_consumers.spark._payload_texts import check_row, checked, json_row, values, wraps

_PLAIN_NAME = re.compile(r"\w[\w $.-]*\Z")


def read_objects(texts: pa.Array, schema: pa.Schema) -> list[pa.Array]:
    """The payloads (a string array) as an Arrow array for each field of an Arrow schema.

    A null payload counts as an empty object. Raises ValueError if not every payload is a JSON
    object that can be read quickly.
    """
    texts = pc.fill_null(texts, "{}")
    # So the joined payloads are the same objects: a payload can end between a closing brace and an
    # opening one only at the top level.
    objects = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if not pc.all(objects).as_py():
        raise ValueError("not all are JSON objects")
    scale = max(map(_scale, schema.types), default=-1)
    if scale >= 0 and wraps(_joined(texts), scale):
        raise ValueError("not all numbers may be read by Arrow")
    try:
        table = _read(texts, schema, _written)
    except pa.ArrowInvalid:
        if not any(pa.types.is_floating(field.type) for field in schema):
            raise
        table = _read(texts, schema, _written_by_jsontriga)
    # A payload of several objects would shift all rows after it.
    if table.num_rows != len(texts):
        raise ValueError("not every payload is one JSON object")
    return [
        _typed(column.combine_chunks(), field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]


def check_members(texts: pa.Array, name: str) -> None:
    """Raises ValueError unless each object has the member, which was read as null in all."""
    # Within a string a quote has a backslash before it, so this finds members only: members of
    # the object itself, if nothing is nested in it.
    if _PLAIN_NAME.match(name):
        is_null = rf'[{{,][ \t\n\r]*"{re.escape(name)}"[ \t\n\r]*:[ \t\n\r]*null'
        found = pc.and_(
            pc.match_substring_regex(texts, is_null), pc.equal(pc.count_substring(texts, "{"), 1)
        )
        texts = texts.filter(pc.invert(found))
    for text in texts.to_pylist():
        check_row(json_row(text), [name])


def _read(
    texts: pa.Array, schema: pa.Schema, written: Callable[[pa.DataType], pa.DataType]
) -> pa.Table:
    data = _data(texts)
    return pj.read_json(
        pa.BufferReader(data),
        # One block: smaller ones would limit a payload's length and need newlines in between.
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([(field.name, written(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
        ),
    )


def _data(texts: pa.Array) -> pa.Buffer:
    """The data of the texts, one after the other, uncopied."""
    offsets = memoryview(texts.buffers()[1]).cast("i")
    start, end = offsets[texts.offset], offsets[texts.offset + len(texts)]
    return texts.buffers()[2].slice(start, end - start)


def _joined(texts: pa.Array) -> pa.Array:
    """The texts as one, uncopied: a regular expression searches one text faster than many."""
    data = _data(texts)
    ends = pa.array([0, data.size], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_string(), 1, [None, ends, data])


def _scale(type_: pa.DataType) -> int:
    """The greatest scale of the decimals in a type; -1 if there are none."""
    if pa.types.is_decimal(type_):
        return int(type_.scale)
    if pa.types.is_list(type_):
        return _scale(type_.value_type)
    if pa.types.is_struct(type_):
        return max((_scale(field.type) for field in type_), default=-1)
    return -1


def _written(type_: pa.DataType) -> pa.DataType:
    """The JSON form of a type's values: a string, unless it is a number or a boolean."""
    types = pa.types
    if types.is_temporal(type_) or types.is_binary(type_):
        return pa.string()
    if types.is_list(type_):
        return pa.list_(_written(type_.value_type))
    if types.is_struct(type_):
        return pa.struct([(field.name, _written(field.type)) for field in type_])
    return type_


def _written_by_jsontriga(type_: pa.DataType) -> pa.DataType:
    """The form that jsontriga writes: fractions are strings (of decimals, Arrow reads both)."""
    return pa.string() if pa.types.is_floating(type_) else _written(type_)


def _typed(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(column.type) and not pa.types.is_string(type_):
        return values(column, type_)
    if pa.types.is_list(type_):
        elements = _typed(column.values, type_.value_type)
        return pa.ListArray.from_arrays(column.offsets, elements, type=type_, mask=column.is_null())
    if pa.types.is_struct(type_):
        parts = [_typed(column.field(at), field.type) for at, field in enumerate(type_)]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=column.is_null())
    return checked(column) if pa.types.is_decimal(type_) else column
